"""Completion in the shells themselves: what bash, zsh and fish make of the scripts that `terrace
help --form SHELL` writes, and that what the build installs has them where shells look.
"""

import shutil
import subprocess

import pytest
import server_process
from conftest import ROOT

BINARY = str(server_process.default_binary())


def script(shell, folder):
    path = folder / f"terrace.{shell}"
    path.write_text(subprocess.check_output([BINARY, "help", "--form", shell], text=True))
    return path


def shell(name, text):
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"{name} is not installed")
    options = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[name]
    done = subprocess.run(
        [program, *options, "-c", text], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout.splitlines()


def bash(path, words):
    listed = " ".join(f"'{word}'" for word in words)
    return shell(
        "bash",
        f"source {path}; COMP_WORDS=(terrace {listed}); COMP_CWORD={len(words)}; _terrace;"
        ' printf "%s\\n" "${COMPREPLY[@]}"',
    )


def zsh(path, words):
    """zsh's own functions stand beside: _describe gets the name of the array as its last word, and
    takes of it what the word under the cursor begins."""
    listed = " ".join(f"'{word}'" for word in words)
    lines = shell(
        "zsh",
        "compdef() { }; _files() { print FILES }\n"
        "_describe() { local -a found=(${(PM)${argv[-1]}:#${words[CURRENT]}*});"
        " (( $#found )) && print -l -- $found }\n"
        f"source {path}; words=(terrace {listed}); CURRENT={len(words) + 1}; _terrace",
    )
    return [line.split(":")[0] for line in lines]


def fish(path, words):
    line = " ".join(["terrace", *words])
    return [each.split("\t")[0] for each in shell("fish", f"source {path}; complete -C '{line}'")]


@pytest.mark.parametrize("complete", [bash, zsh, fish], ids=lambda each: each.__name__)
def test_the_shell_completes_commands_and_options(complete, tmp_path):
    path = script(complete.__name__, tmp_path)
    commands = complete(path, [""])
    assert {"serve", "run", "key", "verify", "config"} <= set(commands)
    assert complete(path, ["ser"]) == ["serve"]
    below = complete(path, ["key", ""])
    assert {"add", "list", "revoke"} <= set(below) and "serve" not in below
    options = complete(path, ["key", "add", "ci", "--ten"])
    assert "--tenant" in options and "--scope" not in options
    assert complete(path, ["serve", "--server.grpc_p"]) == ["--server.grpc_port"]
    # An argument that is called like a command is none.
    assert "--max-tokens" in complete(path, ["run", "key", "--max-t"])


@pytest.mark.parametrize("complete", [bash, zsh, fish], ids=lambda each: each.__name__)
def test_files_are_completed_where_nothing_else_is_meant(complete, tmp_path, monkeypatch):
    path = script(complete.__name__, tmp_path)
    (tmp_path / "seldom-named.gguf").touch()
    monkeypatch.chdir(tmp_path)
    found = complete(path, ["show", "seldom"])
    expected = {"bash": [""], "zsh": ["FILES"], "fish": ["seldom-named.gguf"]}[complete.__name__]
    assert found == expected  # bash's own completion takes over where this one finds nothing


def test_what_the_build_installs_has_page_and_completion_where_the_system_looks(tmp_path):
    build = server_process.default_binary().parent.parent
    if shutil.which("cmake") is None or not (build / "cmake_install.cmake").exists():
        pytest.skip("the program was not built here")
    command = ["cmake", "--install", str(build), "--prefix", str(tmp_path / "usr")]
    subprocess.run(command, check=True, capture_output=True)
    share = tmp_path / "usr" / "share"
    installed = {
        "bash": share / "bash-completion" / "completions" / "terrace",
        "zsh": share / "zsh" / "vendor-completions" / "_terrace",
        "fish": share / "fish" / "vendor_completions.d" / "terrace.fish",
    }
    for name, path in installed.items():
        assert path.read_text() == script(name, tmp_path).read_text()
    page = (share / "man" / "man1" / "terrace.1").read_text()
    assert page.startswith('.TH "terrace" 1')
    unit = (tmp_path / "usr" / "lib" / "systemd" / "system" / "terrace.service").read_text()
    assert unit == (ROOT / "deploy" / "systemd" / "terrace.service").read_text()
    assert (tmp_path / "usr" / "bin" / "terrace").stat().st_mode & 0o111
