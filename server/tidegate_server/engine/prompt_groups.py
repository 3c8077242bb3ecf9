"""Several choices of one prompt: who computes it, and who is held back until that is done."""

from collections.abc import Mapping

from tidegate_server.engine.batch import RequestId
from tidegate_server.engine.request import Request


class PromptGroups:
    """Followers wait with their leader, outside the waiting queue; afterwards they are requests like any other."""

    def __init__(self) -> None:
        self.num_held_back = 0

    def leader_of(self, request: Request, leader_id: str, requests: Mapping[RequestId, Request]) -> Request | None:
        """The unfinished request that computes the same prompt; None when there is none, whatever the sender thinks."""
        leader = requests.get(RequestId(leader_id)) if leader_id else None
        if leader is None or leader.cache_root != request.cache_root:
            return None
        return leader if leader.token_ids[: leader.num_prompt_tokens] == request.token_ids else None

    def hold_back(self, follower: Request, leader: Request) -> None:
        follower.leader = leader
        leader.followers.append(follower)
        self.num_held_back += 1

    def release(self, leader: Request) -> list[Request]:
        """All followers, in the order in which they came; nobody holds them back any more."""
        followers, leader.followers = leader.followers, []
        self.num_held_back -= len(followers)
        for follower in followers:
            follower.leader = None
        return followers

    def leave(self, follower: Request) -> None:
        """A follower ends before its leader has computed the prompt."""
        assert follower.leader is not None, f"{follower.request_id} is not held back"
        follower.leader.followers.remove(follower)
        follower.leader = None
        self.num_held_back -= 1

    def succeed(self, leader: Request) -> Request | None:
        """The leader ends: its first follower, if there is one, leads the others and computes the prompt."""
        followers = self.release(leader)
        if not followers:
            return None
        first, *others = followers
        for follower in others:
            self.hold_back(follower, first)
        return first
