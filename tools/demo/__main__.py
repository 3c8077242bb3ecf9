"""The demo's two commands: `up` and `clean`."""

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tidegate_contract.labels import GROUP, PLURAL
from tools.demo.access import CLUSTER, Access, access_to, current_context
from tools.demo.images import TAG, Image, build_and_load, images_for
from tools.demo.stages import REPOSITORY, StageFailed, follow, read, say, stage
from tools.demo.target import LOCAL, ImageRoute, NoTarget, Target, choose_target

RELEASE = "tidegate"
SYSTEM_NAMESPACE = "tidegate-system"
NAMESPACE = "tidegate-demo"
SERVICE = "smollm2"
EXAMPLE = REPOSITORY / "manifests" / "examples" / "smollm2-cpu.yaml"
RESOURCE = f"{PLURAL}.{GROUP}"
QUESTION = "In two sentences: why do tides rise and fall?"
READY_TIMEOUT_S = 600.0


def ask(context: str) -> bool:
    """Whether a person at the terminal agrees to use this cluster; nobody there means no."""
    if not sys.stdin.isatty():
        say(f"kubectl points at {context!r}; nobody is here to agree to use it, so a cluster is started here instead.")
        say(f"(DEMO_CONTEXT={context} uses it.)")
        return False
    answer = input(f"Use the cluster {context!r} that kubectl points at? No starts one here. [y/N] ")
    return answer.strip().lower() in {"y", "yes"}


def find_target() -> Target:
    wanted = os.environ.get("DEMO_CONTEXT", "")
    current = None if wanted else current_context()
    return choose_target(
        wanted=wanted,
        current=current,
        confirmed=current is not None and ask(current),
        registry=os.environ.get("DEMO_REGISTRY", ""),
    )


def install_chart(access: Access, images: Sequence[Image]) -> None:
    values = [
        f"{image.component}.image.{key}={value}"
        for image in images
        for key, value in (("repository", image.repository), ("tag", TAG))
    ]
    where = ["--namespace", SYSTEM_NAMESPACE, "--create-namespace"]
    chart = REPOSITORY / "charts" / "tidegate"
    read([*access.helm, "upgrade", "--install", RELEASE, chart, *where, "--set", ",".join(values), "--wait"])


def wait_until_ready(access: Access) -> None:
    """Show each new reason in the resource's status until it is ready.

    Raises:
        StageFailed: not ready in time; holds what the resource says of itself.
    """
    shown = ""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        resource = json.loads(access.get("get", RESOURCE, SERVICE, "-n", NAMESPACE, "-o", "json"))
        conditions = {c["type"]: c for c in resource.get("status", {}).get("conditions", [])}
        ready = conditions.get("Ready")
        if ready is not None:
            line = f"{ready['reason']}: {ready['message']}"
            if line != shown:
                say(f"    {line}")
                shown = line
            if ready["status"] == "True":
                return
        time.sleep(1)
    described = access.get("describe", RESOURCE, SERVICE, "-n", NAMESPACE)
    raise StageFailed(f"{SERVICE} is not ready after {READY_TIMEOUT_S:.0f} s:\n{described}")


def chat_through_service(access: Access, image: Image) -> None:
    """Stream a chat completion from a pod of its own, so that it takes the way every client in the cluster takes."""
    script = (Path(__file__).parent / "chat_in_cluster.py").read_text()
    url = json.loads(access.get("get", RESOURCE, SERVICE, "-n", NAMESPACE, "-o", "json"))["status"]["url"]
    say(f"    {url}/chat/completions, asked from a pod: {QUESTION!r}\n")
    pod = ["run", "demo-client", "-n", NAMESPACE, "--image", image.reference, "--image-pull-policy=IfNotPresent"]
    once = ["--restart=Never", "--rm", "--stdin", "--quiet"]
    follow([*access.kubectl, *pod, *once, "--command", "--", "python3", "-c", script, url, QUESTION])


def up() -> None:
    """Everything from an empty machine (or a cluster of the user's) to a streamed completion."""
    started = time.monotonic()
    target = find_target()
    images = images_for(target)
    if target.route is ImageRoute.TEST_CLUSTER:
        with stage("Start a Kubernetes cluster on this machine"):
            follow([*CLUSTER, "up"])
        with stage("Build the images"):
            follow([*CLUSTER, "build-images"])
        with stage("Load the images into the node"):
            follow([*CLUSTER, "load-images"])
    else:
        with stage(f"Build the images and bring them to {target.context}"):
            build_and_load(target, images)
    access = access_to(target)
    with stage("Install the chart"):
        install_chart(access, images)
    with stage(f"Apply {EXAMPLE.relative_to(REPOSITORY)} and wait until it serves"):
        if not access.get("get", "namespace", NAMESPACE, "--ignore-not-found", "-o", "name").strip():
            read([*access.kubectl, "create", "namespace", NAMESPACE])
        read([*access.kubectl, "apply", "-n", NAMESPACE, "-f", EXAMPLE])
        wait_until_ready(access)
    with stage("Stream a chat completion through the Service"):
        chat_through_service(access, images[-1])
    say(f"\nAll of it took {time.monotonic() - started:.0f} s.\n")
    show_next_steps(access, target)


def show_next_steps(access: Access, target: Target) -> None:
    say(f"$ kubectl get infs -n {NAMESPACE}")
    say(access.get("get", "infs", "-n", NAMESPACE))
    say("Look around:")
    say(f"  {access.shell_setup}")
    say(f"  kubectl describe infs {SERVICE} -n {NAMESPACE}        # conditions, scaling decisions, events")
    say(
        f"  kubectl port-forward -n {NAMESPACE} svc/{SERVICE} 8000:80   # then any OpenAI client: http://127.0.0.1:8000/v1"
    )
    say("Clean up:")
    say("  make demo-clean" if target.context is None else f"  DEMO_CONTEXT={target.context} make demo-clean")


def clean() -> None:
    """Remove what `up` made; a cluster that `up` started is stopped, one of the user's is left as it was."""
    context = os.environ.get("DEMO_CONTEXT", "")
    if context in ("", LOCAL):
        with stage("Stop the cluster on this machine"):
            follow([*CLUSTER, "down"])
        return
    access = access_to(Target(context=context, route=ImageRoute.REGISTRY))
    with stage(f"Remove the demo from {context}"):
        read([*access.kubectl, "delete", "namespace", NAMESPACE, "--ignore-not-found"])
        read([*access.helm, "uninstall", RELEASE, "--namespace", SYSTEM_NAMESPACE, "--ignore-not-found", "--wait"])
        read([*access.kubectl, "delete", "namespace", SYSTEM_NAMESPACE, "--ignore-not-found"])


def main() -> int:
    command = {"up": up, "clean": clean}[sys.argv[1]]
    try:
        command()
    except (StageFailed, NoTarget) as problem:
        sys.stderr.write(f"\nmake demo: {problem}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
