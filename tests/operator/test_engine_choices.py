"""The resource offers what the server takes: the operator holds no server, so the words stand in both."""

from enum import StrEnum

import pytest

from tidegate_operator import resource
from tidegate_server import settings


@pytest.mark.parametrize(
    ("offered", "taken"),
    [
        (resource.PreemptionMode, settings.PreemptionMode),
        (resource.PreemptionPolicy, settings.PreemptionPolicy),
    ],
)
def test_every_word_that_the_resource_offers_is_one_the_server_takes(
    offered: type[StrEnum], taken: type[StrEnum]
) -> None:
    assert [word.value for word in offered] == [word.value for word in taken]
