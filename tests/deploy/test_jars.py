"""``scripts/jars/fetch``, with the real Maven."""

import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

FETCH = Path(__file__).resolve().parents[2] / "scripts" / "jars" / "fetch"
POM = """
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>forebay.development</groupId>
  <artifactId>small</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>net.sf.jopt-simple</groupId>
      <artifactId>jopt-simple</artifactId>
      <version>5.0.4</version>
    </dependency>
  </dependencies>
</project>
"""
SETTINGS = """
<settings>
  <mirrors>
    <mirror>
      <id>mirror</id>
      <mirrorOf>*</mirrorOf>
      <url>{}</url>
    </mirror>
  </mirrors>
</settings>
"""


@pytest.mark.skipif(shutil.which("mvn") is None, reason="mvn is not on the PATH")
def test_damaged_library_is_fetched_again_by_one_of_many(tmp_path: Path) -> None:
    """Three fetch at once, beside a local repository that holds a library cut short by an earlier download."""
    scripts = tmp_path / "scripts" / "jars"
    scripts.mkdir(parents=True)
    shutil.copy(FETCH, scripts)
    (scripts / "small.xml").write_text(POM)
    repository = tmp_path / "repository"

    def fetch(count: int, *options: str) -> list[str]:
        """The errors of several that run at once."""
        environment = {**os.environ, "MAVEN_OPTS": " ".join([f"-Dmaven.repo.local={repository}", *options])}
        running = [
            subprocess.Popen([scripts / "fetch", "small"], env=environment, stderr=subprocess.PIPE, text=True)
            for _ in range(count)
        ]
        errors = [process.communicate(timeout=120)[1] for process in running]
        assert [process.returncode for process in running] == [0] * count, errors
        return errors

    fetch(1)
    # What is fetched again comes from here: Maven Central would take longer for the same.
    mirror = shutil.copytree(repository, tmp_path / "mirror")
    settings = tmp_path / ".m2" / "settings.xml"
    settings.parent.mkdir()
    settings.write_text(SETTINGS.format(mirror.as_uri()))
    [library] = repository.glob("net/sf/jopt-simple/**/*.jar")
    library.write_bytes(library.read_bytes()[:1000])
    shutil.rmtree(tmp_path / ".jars")

    errors = fetch(3, f"-Duser.home={tmp_path}")

    assert sum("jopt-simple-5.0.4.jar is damaged." in error for error in errors) == 1
    assert zipfile.ZipFile(tmp_path / ".jars" / "small" / "jopt-simple-5.0.4.jar").testzip() is None
    assert not list((tmp_path / ".jars").glob("small.??????"))
