"""A batch's files as one ZIP, written while it is sent: one chunk of one file in memory, whatever the size.

Pictures and videos are compressed already, so they are stored as they are. The table of results comes last
and names the file, or the reason why there is none, for every row. What cannot be read is told like this:

* a file that has been deleted is left out, and its row of the table says so;
* when the store fails, or a file ends early, the answer breaks off. It then lacks its last chunk and the
  ZIP its directory, so both the connection and the unpacker say that it is not whole.
"""

import tempfile
from collections.abc import Generator, Iterable, Iterator

from zipstream import ZIP_DEFLATED, ZipStream

from api.file_names import FileNames
from api.results_table import ResultsTable, encode_header, encode_lines
from core.artifacts import ArtifactStore
from core.errors import Gone, StoreUnavailable
from core.tables import Artifact, Job

CHUNK_BYTES = 1024 * 1024
TABLE_NAME = "results.csv"
DELETED = "deleted: "
_TABLE_IN_MEMORY_BYTES = 1024 * 1024


def write_archive(
    jobs: Iterable[Job], names: FileNames, table: ResultsTable, store: ArtifactStore
) -> Iterator[bytes]:
    """Yield the ZIP of the files of ``jobs``, and of the table that tells of all of them.

    Raises:
        StoreUnavailable: In the middle, when a file cannot be read to its end.
    """
    archive = ZipStream()
    with tempfile.SpooledTemporaryFile(_TABLE_IN_MEMORY_BYTES) as spool:
        spool.write(encode_header(table.header))
        for job in jobs:
            packed = yield from _pack(archive, job, names, store)
            spool.write(encode_lines([table.line(job, packed)]))
        spool.seek(0)
        archive.add(iter(lambda: spool.read(CHUNK_BYTES), b""), TABLE_NAME, compress_type=ZIP_DEFLATED)
        yield from archive.finalize()


def _pack(
    archive: ZipStream, job: Job, names: FileNames, store: ArtifactStore
) -> Generator[bytes, None, list[str]]:
    """Yield the files of one job; return what the table says of them."""
    told = []
    for artifact, name in _named(job, names):
        try:
            first = store.open_range(artifact.key, 0, CHUNK_BYTES)
        except Gone:
            told.append(DELETED + name)
            continue
        archive.add(_read(store, artifact, first), name, size=artifact.bytes)
        yield from archive.file()
        told.append(name)
    return told


def _named(job: Job, names: FileNames) -> list[tuple[Artifact, str]]:
    """Pair the files of a job with their names.

    A job that has not ended takes its names too, so that a later download calls the other files the same.
    """
    made = {artifact.index: artifact for artifact in job.artifacts}
    count = max([job.plan["n"], *(index + 1 for index in made)])
    given = [
        names.give(
            {**(job.batch_fields or {}), **_built_in(job, index)},
            several=count > 1,
            media_type=made[index].media_type if index in made else "",
        )
        for index in range(count)
    ]
    return [(artifact, given[index]) for index, artifact in sorted(made.items())]


def _built_in(job: Job, index: int) -> dict[str, object]:
    return {"row": job.batch_row, "index": index, "id": job.id, "seed": job.plan["seed"] + index}


def _read(store: ArtifactStore, artifact: Artifact, first: bytes) -> Iterator[bytes]:
    """Yield the file, and break off when it is not as long as it was made."""
    at, chunk = 0, first
    while chunk:
        yield chunk
        at += len(chunk)
        left = artifact.bytes - at
        chunk = store.open_range(artifact.key, at, min(CHUNK_BYTES, left)) if left > 0 else b""
    if at != artifact.bytes:
        raise StoreUnavailable(f"{artifact.key} has {at} bytes instead of {artifact.bytes}.")
