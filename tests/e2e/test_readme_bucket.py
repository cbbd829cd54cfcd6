"""The front page's commands for a bucket, on a real server."""

import os
import re
import subprocess
import sys
from pathlib import Path

from snapfmt import Repository
from snapfmt.testing import s3_servers
from snapfmt.testing.s3_servers import S3Server

BLOCK = re.compile(r"^```bash title=\"a bucket\"\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_commands_for_a_bucket_run(root: Path, tmp_path: Path, ministack: S3Server) -> None:
    repository = Repository.open(tmp_path / "run7", create=True)
    with repository.begin() as attempt, attempt.part("p") as part:
        part.stage("notes.txt", b"x")
        attempt.publish([part.seal()])
    (block,) = BLOCK.findall((root / "README.md").read_text(encoding="utf-8"))
    lines = [line.partition("#")[0].strip() for line in block.splitlines()]
    assert [line.split()[1] for line in lines] == ["push", "verify", "pull"]
    for line in lines:
        words = line.replace("s3://bucket/", f"s3://{s3_servers.BUCKET}/readme/").split()
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env={**os.environ, **ministack.environment},
        )
        assert done.returncode == 0, done.stdout + done.stderr
    again = Repository.open(tmp_path / "again")
    assert again.id == repository.id
    assert again.snapshot().part("p").read("notes.txt") == b"x"
