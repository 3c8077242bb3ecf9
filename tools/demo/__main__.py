"""The demo's two commands: `up` and `clean`."""

import sys
import time

from tests.cluster.kube.errors import ClusterError
from tools.demo import client_pod, inference_service, namespaces, record, release
from tools.demo.access import Access, access_to, cluster_command
from tools.demo.choice import find_target, find_targets_to_clean, record_file
from tools.demo.images import Image, build_and_bring, build_in_test_cluster
from tools.demo.inference_service import EXAMPLE, NAME, NAMESPACE
from tools.demo.preconditions import check
from tools.demo.stages import REPOSITORY, StageFailed, follow, say, stage
from tools.demo.target import NoTarget, Target

QUESTION = "In two sentences: why do tides rise and fall?"


def bring_images(target: Target) -> tuple[Image, ...]:
    """Build the images and bring them to the target's nodes; a cluster of tests/cluster is started on the way."""
    if not target.is_local:
        with stage(f"Build the images and bring them to {target.context}"):
            return build_and_bring(target)
    with stage("Start a Kubernetes cluster on this machine"):
        follow(cluster_command("up", target))
    with stage("Build the images"):
        images = build_in_test_cluster(target)
    with stage("Load the images into the node"):
        follow(cluster_command("load-images", target))
    return images


def up() -> None:
    """Everything from an empty machine (or a cluster of the user's) to a streamed completion."""
    started = time.monotonic()
    target = find_target()
    check(target)
    record.remember(record_file(), target)
    images = bring_images(target)
    access = access_to(target)
    with stage("Install the chart"):
        release.install(access, images)
    with stage(f"Apply {EXAMPLE.relative_to(REPOSITORY)} and wait until it serves"):
        inference_service.apply_afresh(access)
        inference_service.wait_until_ready(access)
    with stage("Stream a chat completion through the Service"):
        url = inference_service.status(access)["url"]
        say(f"    {url}/chat/completions, asked from a pod: {QUESTION!r}\n")
        client_pod.stream_chat(access, images[-1], url, QUESTION)
    say(f"\nAll of it took {time.monotonic() - started:.0f} s.\n")
    show_next_steps(access)


def show_next_steps(access: Access) -> None:
    say(f"$ kubectl get infs -n {NAMESPACE}")
    say(access.get("get", "infs", "-n", NAMESPACE))
    say("Look around:")
    say(f"  {access.shell_setup}")
    say(f"  kubectl describe infs {NAME} -n {NAMESPACE}        # conditions, scaling decisions, events")
    say(f"  kubectl port-forward -n {NAMESPACE} svc/{NAME} 8000:80  # then any OpenAI client: http://127.0.0.1:8000/v1")
    say("Clean up:")
    say("  make demo-clean")


def clean() -> None:
    """Remove what `up` made, wherever it did: a cluster that it started is stopped, one of the user's stays."""
    file = record_file()
    for target in find_targets_to_clean():
        if target.is_local:
            with stage(f"Stop the cluster {target.cluster_name!r} on this machine"):
                follow(cluster_command("down", target))
        else:
            with stage(f"Remove the demo from {target.context!r}"):
                remove_demo(access_to(target))
        record.forget(file, target)
    for left in record.remembered(file):
        say(f"    left as it is: the demo on {left.context or left.cluster_name!r}")


def remove_demo(access: Access) -> None:
    """Remove the demo from a cluster of the user's, saying what goes.

    Raises:
        StageFailed: InferenceServices of others would go with the demo's release.
    """
    installed = release.find_installed(access)
    if installed.is_from_demo and installed.has_definition and (others := inference_service.of_others(access)):
        raise StageFailed(f"these would go with the demo's release; delete them first: {', '.join(others)}")
    if installed.has_definition:
        tell(inference_service.remove(access))
    tell(namespaces.remove_namespace(access, NAMESPACE))
    if installed.is_from_demo:
        tell(release.uninstall(access))
    if installed.is_from_others:
        tell("the Tidegate that is installed there is not the demo's and stays")
    else:
        tell(namespaces.remove_namespace(access, release.NAMESPACE))


def tell(said: str) -> None:
    """Show what a tool says it has done, if it has done anything."""
    if said.strip():
        say(f"    {said.strip()}")


def main() -> int:
    command = {"up": up, "clean": clean}[sys.argv[1]]
    name = {"up": "make demo", "clean": "make demo-clean"}[sys.argv[1]]
    try:
        command()
    except (StageFailed, NoTarget, ClusterError) as problem:
        sys.stderr.write(f"\n{name}: {problem}\n")
        return 1
    except (KeyboardInterrupt, EOFError):
        sys.stderr.write(f"\n{name}: interrupted; run it again, or make demo-clean\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
