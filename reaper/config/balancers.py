"""What proxies and load balancers do with an idle connection. One table for the linter and for advice.

One rule: *one side must be first to close, and the table says which*.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Balancer:
    """What a proxy or load balancer does with an idle connection to us.

    Attributes:
        title: As its users call it.
        idle: Seconds after which it gives an idle connection up, by default.
        tells: True: it closes the connection, and so must be the first to do it, or its next request meets our close
            and its client a 502. False: it forgets the connection silently, and so we must be first.
        source: Where that is said.
    """

    title: str
    idle: float
    tells: bool
    source: str


BALANCERS = {
    "alb": Balancer("AWS ALB", 60.0, True, "idle_timeout.timeout_seconds"),
    "nginx": Balancer("nginx", 75.0, True, "keepalive_timeout; its upstream module's own default is 60 s"),
    "gorouter": Balancer("Cloud Foundry gorouter", 90.0, True, "keep-alive of backend connections"),
    "nlb": Balancer("AWS NLB", 350.0, False, "TCP idle timeout; answers the next packet with a reset"),
}
