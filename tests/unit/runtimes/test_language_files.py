"""Which files of /etc the languages get: those of packages, and none in which people keep secrets."""

from __future__ import annotations

from fumehood.runtimes.language_files import language_files


def test_files_of_packages_are_shown_and_those_of_the_site_are_not(tmp_path):
    """`Renviron.site` and passwords of Java's management stay on the host, and so does what not every user may read."""
    shown = ("R/Renviron", "java-17-openjdk/security/java.security", "java-17-openjdk/jvm-amd64.cfg")
    hidden = ("R/Renviron.site", "R/Rprofile.site", "java-17-openjdk/management/jmxremote.password", "shadow")

    for name in (*shown, *hidden, "R/Makeconf"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        path.chmod(0o644)

    (tmp_path / "R/Makeconf").chmod(0o640)

    assert language_files(str(tmp_path), str(tmp_path / "none")) == [
        str(tmp_path / name) for name in (shown[0], shown[2], shown[1])
    ]


def test_what_ghc_knows_of_its_packages_is_shown(tmp_path):
    """It lies in /var/lib, of which a sandbox has nothing else."""
    for name in ("ghc/package.conf.d/base.conf", "ghc/other", "dpkg/status"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)

    assert language_files(str(tmp_path / "none"), str(tmp_path)) == [
        str(tmp_path / "ghc/package.conf.d/base.conf")
    ]
