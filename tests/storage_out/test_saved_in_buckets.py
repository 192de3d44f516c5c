"""Saved states in a bucket: the address is the user's own, and the store's own variables open it."""

from __future__ import annotations

import pytest
from tests.integration import storage_programs

from fumehood import BlobNotFoundError, InvalidArgumentError, Sandbox, StorageError, read_saved


@pytest.fixture(scope="module")
def bucket():
    with storage_programs.s3() as place, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", place.address)
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_REGION", "us-east-1")
        yield "s3://bucket"


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
        sandbox.save("s3://no-such-bucket/state")

    for place in ("s3://", "s3://bucket", "s3://bucket/", "ftp://x/y", "", "a\0b"):
        with pytest.raises(InvalidArgumentError):
            read_saved(place)
