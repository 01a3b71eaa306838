"""What an absent package says."""

import pytest

from railbus.subscribers.optional import optional


def test_an_absent_package_is_named_with_the_extra_that_brings_it():
    with pytest.raises(ValueError, match=r"no_such_package is not installed.*railbus\[things\]"):
        optional("no_such_package", "things")
