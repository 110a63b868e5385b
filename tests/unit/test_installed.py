"""`apply --installed` and `--revert` with a small sglang: what is done, what is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from environments import INFO, Environment, make_venv, put_sglang, row_of
from made_series import BASE, STEPS, after, git, make_repository, make_series, snapshot
from patchset.errors import Exit, Failure
from patchset.installed import apply_installed, revert_installed

NEW = "python/sglang/srt/layers/sm120/config.py"
ENVIRON = "python/sglang/srt/environ.py"


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    return make_series(tmp_path_factory.mktemp("series"))


@pytest.fixture
def env(tmp_path):
    return Environment(tmp_path / "my environment ü")


def refused(env, call, *args, **options) -> Failure:
    """The failure of `call`, once it is sure that nothing changed."""
    before = snapshot(env.site)
    with pytest.raises(Failure) as caught:
        call(*args, **options)
    assert snapshot(env.site) == before
    assert caught.value.what and caught.value.state and caught.value.next
    return caught.value


def test_apply_writes_what_git_would_and_revert_gives_all_back(env, series):
    before = snapshot(env.site)
    result = apply_installed(series, str(env.python))
    assert env.holds(after())
    assert (result.already, result.files) == (False, 5)
    revert_installed(str(env.python))
    assert snapshot(env.site) == before


def test_original_files_come_back_with_their_times_and_links(env, series, tmp_path):
    target = env.package(ENVIRON)
    os.utime(target, ns=(10**18, 10**18 + 7))
    before = target.stat()
    apply_installed(series, str(env.python))
    assert target.stat().st_ino != before.st_ino
    revert_installed(str(env.python))
    after_revert = target.stat()
    assert (after_revert.st_ino, after_revert.st_mtime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
    )


def test_files_hard_linked_to_an_installers_cache_are_not_written_through(
    env, series, tmp_path
):
    cached = tmp_path / "cache-environ.py"
    os.link(env.package(ENVIRON), cached)
    apply_installed(series, str(env.python))
    assert env.holds(after())
    assert cached.read_bytes() == BASE[ENVIRON]
    revert_installed(str(env.python))
    assert cached.read_bytes() == BASE[ENVIRON]
    assert os.path.samefile(cached, env.package(ENVIRON))


def test_originals_are_copied_where_there_are_no_hard_links(env, series, monkeypatch):
    def no_links(*_args, **_options):
        raise PermissionError(1, "Operation not permitted")

    before = snapshot(env.site)
    monkeypatch.setattr(os, "link", no_links)
    apply_installed(series, str(env.python))
    assert env.holds(after())
    revert_installed(str(env.python))
    assert snapshot(env.site) == before


def test_modes_are_kept_and_new_files_are_readable_under_any_umask(env, series):
    env.package(ENVIRON).chmod(0o640)
    before = snapshot(env.site)
    old = os.umask(0o077)
    try:
        apply_installed(series, str(env.python))
    finally:
        os.umask(old)
    assert env.package(ENVIRON).stat().st_mode & 0o777 == 0o640
    assert env.package(NEW).stat().st_mode & 0o777 == 0o644
    assert env.package(NEW).parent.stat().st_mode & 0o777 == 0o755
    revert_installed(str(env.python))
    assert snapshot(env.site) == before


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_every_row_of_record_is_true_after_apply(tmp_path, series, end):
    env = Environment(tmp_path / "env", end=end)
    untouched = [
        row
        for row in (env.info / "RECORD").read_text().splitlines()
        if "__init__" in row
    ]
    apply_installed(series, str(env.python))
    text = (env.info / "RECORD").read_bytes().decode()
    assert text.count(end) == text.count("\n") and text.endswith(end)
    rows = text.splitlines()
    assert set(untouched) <= set(rows)
    paths = [row.split(",")[0] for row in rows]
    assert len(paths) == len(set(paths))
    files = {
        p for p in env.site.rglob("*") if p.is_file() and "__pycache__" not in p.parts
    }
    assert {env.site / path for path in paths} == files
    for row, path in zip(rows, paths):
        if path not in (f"{INFO}/RECORD", f"{INFO}/sm120-patchset/manifest.json"):
            assert row == row_of(env.site, env.site / path)


def test_bytecode_of_touched_modules_goes_both_ways_and_only_theirs(env, series):
    cache = env.package(ENVIRON).parent / "__pycache__"
    cache.mkdir()
    mine = [cache / "environ.cpython-312.pyc", cache / "environ.cpython-312.opt-1.pyc"]
    other = cache / "environ_more.cpython-312.pyc"
    for turn in (apply_installed, revert_installed):
        for path in (*mine, other):
            path.write_bytes(b"stale")
        made = env.package(NEW).parent
        if made.exists():
            (made / "__pycache__").mkdir()
            (made / "__pycache__" / "config.cpython-312.pyc").write_bytes(b"stale")
        turn(*([series] if turn is apply_installed else []), str(env.python))
        assert [path.name for path in cache.iterdir()] == [other.name]
    assert not made.exists()


def test_stale_bytecode_that_is_never_checked_does_not_hide_the_patch(env, series):
    source = env.package(ENVIRON)
    source.write_bytes(BASE[ENVIRON])
    cache = source.parent / "__pycache__" / "environ.cpython-312.pyc"
    cache.parent.mkdir()
    cache.write_bytes(b"unchecked")
    apply_installed(series, str(env.python))
    assert not cache.exists()


def test_a_directory_with_other_files_stays_and_is_named(env, series):
    apply_installed(series, str(env.python))
    own = env.package(NEW).with_name("own.py")
    own.write_text("mine\n")
    result = revert_installed(str(env.python))
    assert result.kept_directories == ("sglang/srt/layers/sm120",)
    assert "sm120" in "\n".join(result.lines())
    assert [path.name for path in own.parent.iterdir()] == ["own.py"]


def test_inside_a_git_project_where_git_apply_would_change_nothing(tmp_path, series):
    project = tmp_path / "project"
    make_repository(project, {"README": b"a project\n"})
    (project / ".gitignore").write_text(".venv\n")
    env = Environment(project / ".venv")
    patch = series.patches[1].diff
    command = ["git", "-C", str(env.site), "apply", "-p2", "-"]
    assert subprocess.run(command, input=patch).returncode == 0
    assert env.holds(
        BASE
    ), "git apply is expected to skip the files of an ignored environment"
    apply_installed(series, str(env.python))
    assert env.holds(after())
    assert git(project, "status", "--porcelain") == "?? .gitignore"


def test_symlinked_site_packages(tmp_path, series):
    env = Environment(tmp_path / "env")
    real = tmp_path / "elsewhere"
    env.site.rename(real)
    env.site.symlink_to(real)
    before = snapshot(real)
    apply_installed(series, str(env.python))
    assert env.holds(after())
    revert_installed(str(env.python))
    assert snapshot(real) == before and env.site.is_symlink()


def test_a_second_apply_says_so_and_changes_nothing(env, series):
    apply_installed(series, str(env.python))
    before = snapshot(env.site)
    result = apply_installed(series, str(env.python))
    assert result.already and not result.by_hand
    assert "already applied" in "\n".join(result.lines())
    assert snapshot(env.site) == before


def test_a_second_revert_says_so_and_changes_nothing(env, series):
    before = snapshot(env.site)
    result = revert_installed(str(env.python))
    assert result.nothing_to_do and "nothing to do" in "\n".join(result.lines())
    assert snapshot(env.site) == before


def test_dry_runs_write_nothing(env, series):
    before = snapshot(env.site)
    result = apply_installed(series, str(env.python), dry_run=True)
    assert result.dry_run and "would change 5 files" in "\n".join(result.lines())
    assert snapshot(env.site) == before
    apply_installed(series, str(env.python))
    patched = snapshot(env.site)
    result = revert_installed(str(env.python), dry_run=True)
    assert len(result.files) == 6 and "would put back" in "\n".join(result.lines())
    assert snapshot(env.site) == patched


def test_upto_cuts_the_series_and_more_asks_for_a_revert_first(env, series):
    apply_installed(series, str(env.python), upto="0020")
    assert env.holds(after(2))
    assert apply_installed(series, str(env.python), upto="0020").already
    failure = refused(env, apply_installed, series, str(env.python))
    assert failure.code == Exit.PATCH and "2 of 3 patches are in place" in failure.what
    assert "--revert" in failure.next
    failure = refused(env, apply_installed, series, str(env.python), upto="0010")
    assert "1 more than asked for" in failure.what


def test_another_series_asks_for_a_revert_first(env, series, tmp_path):
    other = make_series(tmp_path, steps=[("0015-other", {ENVIRON: b"other\n"})])
    apply_installed(other, str(env.python))
    failure = refused(env, apply_installed, series, str(env.python))
    assert "another series is in place: 0015-other" in failure.what
    assert "--revert" in failure.next


def test_a_series_that_removes_a_file(env, tmp_path):
    gone = "python/sglang/srt/layers/indexer.py"
    series = make_series(tmp_path, steps=[("0010-remove", {gone: None})])
    before = snapshot(env.site)
    apply_installed(series, str(env.python))
    assert not env.package(gone).exists()
    assert (
        "indexer.py,sha256" in (env.info / "RECORD").read_text()
    )  # the kept original's row
    assert "\nsglang/srt/layers/indexer.py" not in (env.info / "RECORD").read_text()
    revert_installed(str(env.python))
    assert snapshot(env.site) == before


def test_files_that_are_not_the_pins_are_listed(env, series):
    env.package(ENVIRON).write_bytes(b"changed by hand\n")
    failure = refused(env, apply_installed, series, str(env.python))
    assert failure.code == Exit.PATCH and "1 file" in failure.what
    assert failure.where == str(env.package(ENVIRON))
    assert "--force-reinstall" in failure.next


def test_a_missing_file_is_not_the_pins(env, series):
    env.package(ENVIRON).unlink()
    failure = refused(env, apply_installed, series, str(env.python))
    assert failure.where == str(env.package(ENVIRON))


@pytest.mark.parametrize("count", [1, 2])
def test_patches_put_there_by_other_means_are_counted(tmp_path, series, count):
    env = Environment(tmp_path / "env", files=after(count))
    failure = refused(env, apply_installed, series, str(env.python))
    assert f"{count} of 3 patches are already in these files" in failure.what
    result = apply_installed(series, str(env.python), upto=STEPS[count - 1][0])
    assert result.already and result.by_hand


def test_the_whole_series_put_there_by_other_means_is_already_applied(tmp_path, series):
    env = Environment(tmp_path / "env", files=after())
    before = snapshot(env.site)
    result = apply_installed(series, str(env.python))
    assert (
        result.already
        and result.by_hand
        and "by other means" in "\n".join(result.lines())
    )
    assert snapshot(env.site) == before


def test_fewer_patches_than_those_put_there_by_other_means_are_refused(
    tmp_path, series
):
    env = Environment(tmp_path / "env", files=after())
    failure = refused(env, apply_installed, series, str(env.python), upto="0010")
    assert "3 of 3 patches are already" in failure.what


def test_half_applied_files_are_listed_with_what_they_hold(tmp_path, series):
    files = {**BASE, ENVIRON: after()[ENVIRON]}
    env = Environment(tmp_path / "env", files=files)
    failure = refused(env, apply_installed, series, str(env.python))
    assert (
        "half applied" in failure.what and "environ.py: 0030-indexer" in failure.where
    )


@pytest.mark.parametrize("version", ["0.5.12", "0.5.14", "0.5.130"])
def test_another_version_is_named(tmp_path, series, version):
    env = Environment(tmp_path / "env", version=version)
    failure = refused(env, apply_installed, series, str(env.python))
    assert failure.code == Exit.PATCH
    assert version in failure.what and "0.5.13" in failure.what


def test_a_local_version_of_the_pin_is_judged_by_its_files(tmp_path, series):
    env = Environment(tmp_path / "env", version="0.5.13+local")
    apply_installed(series, str(env.python))
    assert env.holds(after())


@pytest.mark.parametrize("editable", [True, False])
def test_an_install_from_a_directory_points_at_into(tmp_path, series, editable):
    origin = {
        "url": "file:///src/my%20sglang/python",
        "dir_info": {"editable": editable},
    }
    env = Environment(tmp_path / "env", direct_url=origin)
    failure = refused(env, apply_installed, series, str(env.python))
    assert failure.code == Exit.ENVIRONMENT
    assert "--into '/src/my sglang/python'" in failure.next


def test_an_install_from_a_wheel_file_is_fine(tmp_path, series):
    origin = {"url": "file:///w/sglang-0.5.13.whl", "archive_info": {}}
    env = Environment(tmp_path / "env", direct_url=origin)
    apply_installed(series, str(env.python))
    assert env.holds(after())


def test_a_package_that_the_metadata_does_not_describe_is_refused(
    env, series, tmp_path
):
    shadow = tmp_path / "checkout"
    (shadow / "sglang").mkdir(parents=True)
    (shadow / "sglang" / "__init__.py").write_text("")
    (env.site / "0.pth").write_text(
        f"import sys; sys.path.insert(0, {str(shadow)!r})\n"
    )
    failure = refused(env, apply_installed, series, str(env.python))
    assert failure.code == Exit.ENVIRONMENT and str(shadow) in failure.what


def test_a_package_that_is_a_link_to_a_checkout_is_refused(env, series, tmp_path):
    real = tmp_path / "sglang"
    (env.site / "sglang").rename(real)
    (env.site / "sglang").symlink_to(real)
    assert (
        refused(env, apply_installed, series, str(env.python)).code == Exit.ENVIRONMENT
    )


def test_a_file_linked_into_an_installers_cache_is_refused(env, series, tmp_path):
    cached = tmp_path / "cached.py"
    env.package(ENVIRON).rename(cached)
    env.package(ENVIRON).symlink_to(cached)
    failure = refused(env, apply_installed, series, str(env.python))
    assert "link" in failure.what and "UV_LINK_MODE=copy" in failure.next


def test_no_sglang_in_the_environment(tmp_path, series):
    python, site = make_venv(tmp_path / "env")
    with pytest.raises(Failure) as caught:
        apply_installed(series, str(python))
    assert caught.value.code == Exit.ENVIRONMENT
    assert "no sglang" in caught.value.what and "pip install" in caught.value.next


def test_sglang_in_a_zip_is_refused(tmp_path, series):
    python, site = make_venv(tmp_path / "env")
    content = tmp_path / "content"
    content.mkdir()
    put_sglang(content)
    archive = shutil.make_archive(str(tmp_path / "bundle"), "zip", content)
    (site / "bundle.pth").write_text(f"{archive}\n")
    with pytest.raises(Failure) as caught:
        apply_installed(series, str(python))
    assert caught.value.code == Exit.ENVIRONMENT and "zip" in caught.value.what


def test_metadata_without_record_is_refused(env, series):
    (env.info / "RECORD").unlink()
    assert "RECORD" in refused(env, apply_installed, series, str(env.python)).what


def test_two_installed_sglang_are_refused(env, series, tmp_path):
    shutil.copytree(env.info, env.site / "sglang-0.5.12.dist-info")
    assert (
        "more than one" in refused(env, apply_installed, series, str(env.python)).what
    )


def test_an_install_in_the_users_own_site_packages(tmp_path, series, monkeypatch):
    """`pip install --user` puts packages where an isolated interpreter does not look."""
    python = Path(sys.base_prefix) / "bin" / "python3"
    monkeypatch.setenv("HOME", str(tmp_path))
    ask = [str(python), "-I", "-c", "import site; print(site.getusersitepackages())"]
    site = Path(subprocess.check_output(ask, text=True).strip())
    assert site.is_relative_to(tmp_path)
    site.mkdir(parents=True)
    put_sglang(site)
    apply_installed(series, str(python))
    assert (site / "sglang/srt/environ.py").read_bytes() == after()[ENVIRON]


@pytest.mark.parametrize("program", ["exit 2", "echo hello", "kill -9 $$"])
def test_an_interpreter_that_gives_no_answer(tmp_path, series, program):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    with pytest.raises(Failure) as caught:
        apply_installed(series, str(python))
    assert caught.value.code == Exit.ENVIRONMENT and caught.value.where == str(python)


def test_one_install_seen_by_two_paths_is_one(env, series):
    alias = env.site.with_name("alias-packages")
    alias.symlink_to(env.site)
    (env.site / "alias.pth").write_text(f"{alias}\n")
    apply_installed(series, str(env.python))
    assert env.holds(after())


def test_what_pip_left_when_it_was_stopped_does_not_disturb(env, series):
    shutil.copytree(env.info, env.site / "~glang-0.5.12.dist-info")
    (env.site / "broken-1.0.dist-info").mkdir()
    apply_installed(series, str(env.python))
    assert env.holds(after())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write for another user")
def test_root_leaves_everything_to_the_owner_of_the_environment(env, series):
    for path in [env.site, *env.site.rglob("*")]:
        os.lchown(path, 12345, 12345)
    apply_installed(series, str(env.python))
    assert {path.lstat().st_uid for path in env.site.rglob("*")} == {12345}
    revert_installed(str(env.python))
    assert {path.lstat().st_gid for path in env.site.rglob("*")} == {12345}


@pytest.mark.parametrize("python", ["/no/such/python", "no-such-python", "/"])
def test_an_interpreter_that_does_not_exist(series, python):
    with pytest.raises(Failure) as caught:
        apply_installed(series, python)
    assert caught.value.code == Exit.USAGE and python in caught.value.what


def test_the_active_environment_is_meant_without_python(env, series, monkeypatch):
    monkeypatch.setenv("VIRTUAL_ENV", str(env.python.parents[1]))
    apply_installed(series)
    assert env.holds(after())


def test_a_site_hook_that_prints_does_not_disturb(env, series):
    (env.site / "noise.pth").write_text("import sys; print('{noise}')\n")
    apply_installed(series, str(env.python))
    assert env.holds(after())


def test_revert_refuses_when_somebody_changed_a_file_since(env, series):
    apply_installed(series, str(env.python))
    env.package(NEW).write_bytes(b"tuned by hand\n")
    env.package(ENVIRON).unlink()
    failure = refused(env, revert_installed, str(env.python))
    assert failure.code == Exit.PATCH and "2 files" in failure.what
    assert set(failure.where.splitlines()) == {
        str(env.package(NEW)),
        str(env.package(ENVIRON)),
    }
    failure = refused(env, apply_installed, series, str(env.python))
    assert "changed since" in failure.what


def test_revert_refuses_when_record_was_changed_since(env, series):
    apply_installed(series, str(env.python))
    with open(env.info / "RECORD", "a") as record:
        record.write("sglang/extra.py,,\n")
    assert "RECORD" in refused(env, revert_installed, str(env.python)).where


def test_revert_refuses_when_a_kept_original_is_gone(env, series):
    apply_installed(series, str(env.python))
    (
        env.info / "sm120-patchset" / "originals" / "sglang" / "srt" / "environ.py"
    ).unlink()
    failure = refused(env, revert_installed, str(env.python))
    assert "without a kept original" in failure.what


@pytest.mark.parametrize("text", ["", "{}", '{"format": 99}', "[]"])
def test_a_manifest_that_cannot_be_read(env, series, text):
    apply_installed(series, str(env.python))
    (env.info / "sm120-patchset" / "manifest.json").write_text(text)
    for call, args in ((revert_installed, ()), (apply_installed, (series,))):
        failure = refused(env, call, *args, str(env.python))
        assert failure.code == Exit.PATCH and "can't be read" in failure.what


def test_results_as_json(env, series):
    values = apply_installed(series, str(env.python)).as_json()
    assert values["source"] == "installed" and values["already"] is False
    assert [patch["name"] for patch in values["patches"]] == [name for name, _ in STEPS]
    values = revert_installed(str(env.python)).as_json()
    assert values["revert"] is True and f"{INFO}/RECORD" in values["files"]


@pytest.mark.parametrize("minor", ["3.8", "3.9", "3.10"])
def test_the_environment_may_have_an_older_python(tmp_path, series, minor):
    found = _older_python(minor)
    if not found:
        pytest.skip(f"no Python {minor} on this machine")
    subprocess.run(
        [found, "-m", "venv", "--without-pip", str(tmp_path / "old")], check=True
    )
    site = next((tmp_path / "old").glob("lib/python*/site-packages"))
    put_sglang(site)
    apply_installed(series, str(tmp_path / "old" / "bin" / "python"))
    assert (site / "sglang/srt/environ.py").read_bytes() == after()[ENVIRON]


def _older_python(minor):
    candidates = [shutil.which(f"python{minor}")]
    root = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    versions = os.path.join(root, "versions")
    if os.path.isdir(versions):
        names = [name for name in os.listdir(versions) if name.startswith(minor + ".")]
        candidates = [
            os.path.join(versions, name, "bin", "python") for name in names
        ] + candidates
    for path in candidates:
        if (
            path
            and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0
        ):
            return path
    return None
