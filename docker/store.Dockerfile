# The S3-compatible store of compose.yaml with a folder that its user may write: the base has only root's.
FROM versity/versitygw:v1.8.0@sha256:30292fc2eeacc67a36993b01f7a7a5e3361a19cced0e80c1d71cfa2a4b0a2499
RUN mkdir /pictures && chown 10001:10001 /pictures
USER 10001:10001
CMD ["posix", "/pictures"]
