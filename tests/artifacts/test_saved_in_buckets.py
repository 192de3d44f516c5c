"""Saved states in a bucket: the address is the user's own, and the store's own variables open it."""

from __future__ import annotations

import pytest
from tests.integration import storage_programs

from fumehood import BlobNotFoundError, InvalidArgumentError, Sandbox, StorageError, read_saved


@pytest.fixture(scope="module", params=["s3", "azure"])
def bucket(request, tmp_path_factory):
    is_s3 = request.param == "s3"
    opened = storage_programs.s3() if is_s3 else storage_programs.azure(tmp_path_factory.mktemp("azure"))

    with opened as place, pytest.MonkeyPatch.context() as patch:
        for name, value in place.options.items():
            patch.setenv(f"{'AWS' if is_s3 else 'AZURE_STORAGE'}_{name.upper()}", value)

        yield place.location.removesuffix("/some/prefix")


def test_a_sandbox_is_saved_to_a_bucket_and_loaded_again(bucket):
    """Larger than a part of an upload; a second state replaces the first."""
    with Sandbox() as sandbox:
        sandbox.run_code("import os; noise = os.urandom(6_000_000); x = 1")
        report = sandbox.save(f"{bucket}/agents/a b/state")
        assert report.location == f"{bucket}/agents/a b/state"
        sandbox.run_code("x = 2")
        sandbox.save(f"{bucket}/agents/a b/state")

    assert read_saved(f"{bucket}/agents/a b/state").variables["default"] == ("noise", "x", "os")

    with Sandbox.load(f"{bucket}/agents/a b/state") as sandbox:
        assert sandbox.run_code("x, len(noise)").text == "(2, 6000000)"


def test_what_is_not_there_is_an_error(bucket):
    """As is an address that names nothing."""
    with pytest.raises(BlobNotFoundError):
        Sandbox.load(f"{bucket}/nothing")

    with pytest.raises(StorageError), Sandbox() as sandbox:
        sandbox.save(f"{bucket.partition(':')[0]}://no-such-bucket/state")

    for place in ("s3://", "s3://bucket", "s3://bucket/", "ftp://x/y", "", "a\0b"):
        with pytest.raises(InvalidArgumentError):
            read_saved(place)
