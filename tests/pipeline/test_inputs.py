"""Pictures made ready for a pass, and what a mask keeps of them to the bit."""

import numpy as np
import pytest
from PIL import Image

from pipeline.errors import Unsupported
from pipeline.inputs import Fitted, Inputs, fit
from policy.model_spec import ModelSpec
from policy.pictures import PlannedPicture
from policy.plan import RenderPlan
from tests.fixtures.models import over_picture, planned

HALVES = Image.new("RGB", (100, 64), "red")
HALVES.paste("blue", (50, 0, 100, 64))


def plan_over(spec: ModelSpec, picture: Image.Image, *, masked: bool = False) -> RenderPlan:
    return over_picture(planned(spec), picture, masked=masked)


def test_a_picture_is_cut_in_the_middle_and_never_stretched(tiny_spec: ModelSpec) -> None:
    fitted = fit(Inputs(HALVES), plan_over(tiny_spec, HALVES))
    assert fitted is not None
    assert fitted.image.size == (64, 64)
    pixels = np.asarray(fitted.image)
    assert (pixels[:, :28] == (255, 0, 0)).all()  # as many columns of each as the middle of the picture has
    assert (pixels[:, 36:] == (0, 0, 255)).all()


def test_a_mask_becomes_black_and_white(tiny_spec: ModelSpec) -> None:
    mask = Image.linear_gradient("L").resize((100, 64))
    fitted = fit(Inputs(HALVES, mask), plan_over(tiny_spec, HALVES, masked=True))
    assert fitted is not None
    assert fitted.mask is not None
    assert set(np.unique(np.asarray(fitted.mask))) == {0, 255}
    assert np.asarray(fitted.mask)[0, 0] == 0
    assert np.asarray(fitted.mask)[-1, -1] == 255


def test_what_the_mask_keeps_is_the_picture_itself() -> None:
    mask = Image.new("L", (4, 4), 0)
    mask.paste(255, (0, 0, 2, 4))
    fitted = Fitted(Image.new("RGB", (4, 4), (1, 2, 3)), mask)
    restored = fitted.restore(np.full((4, 4, 3), 9, np.uint8))
    assert (restored[:, :2] == 9).all()
    assert (restored[:, 2:] == (1, 2, 3)).all()


def test_pictures_that_are_not_the_plans_are_refused(tiny_spec: ModelSpec) -> None:
    plan = plan_over(tiny_spec, HALVES)
    with pytest.raises(Unsupported, match="was not given"):
        fit(None, plan)
    with pytest.raises(Unsupported, match="not with its mask"):
        fit(Inputs(HALVES, Image.new("L", HALVES.size)), plan)
    with pytest.raises(Unsupported, match="is 10x10; the plan was made for 100x64"):
        fit(Inputs(Image.new("RGB", (10, 10))), plan)
    with pytest.raises(Unsupported, match="draws from no picture"):
        fit(Inputs(HALVES), planned(tiny_spec))


def test_the_same_cut_is_planned_for_picture_and_mask(tiny_spec: ModelSpec) -> None:
    plan = plan_over(tiny_spec, HALVES, masked=True)
    assert plan.image == plan.mask == PlannedPicture.cut("0" * 64, (100, 64), (64, 64))
