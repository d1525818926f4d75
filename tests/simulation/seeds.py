"""Seeds that have found something, each with what it was. They are run in every ``make test-all``.

What a seed does follows from the order in which the script draws from its chance: a change of the script gives a seed
another meaning, and these sentences are then history. Look for another seed with a mutation that brings the fault back.
"""

from __future__ import annotations

from typing import Final

KEPT: Final[dict[int, str]] = {
    4: "NATS did not answer while a service verified its streams, or the disk was full while a watcher created them: "
    "the service ended with an error instead of asking again (sessions).",
    38: "The same, after the store was lost.",
    278: "A Binding that the API server had refused with 429 was sent again to a node that was cordoned meanwhile, "
    "though nothing had been carried out; and the judge asked a compacted store what the binder had known.",
    20844: "The judge had forgotten a pod that the binder had read and bound while its watch was silent: an eviction "
    "that was needed seemed needless.",
    101168: "No eviction helped a pod as long as there was no volume for it. Its Decision named only the plugins that "
    "rejected the nodes as they were, so the volume that was added woke it no more.",
    105707: "A scorer that was behind had not read a claim that was rewritten meanwhile. The watcher took the former "
    "version for seen, and asked about the new one as an update, which no plugin waited for.",
    106064: "A node was deleted while a volume was asked for there, and the pod was bound to it, without the volume.",
    106286: "A pod was bound and deleted before a scorer that was behind read that it was bound: it counted there for "
    "5 s more, and a pod that was rejected because of it slept.",
    201817: "A pod left a node, and an important one would have fitted there with an eviction: it was not woken, since "
    "only what was free without one counted.",
    203662: "A proposal filled a node where the pod had no volume either. Its Decision named only the plugin "
    "that the proposal made reject it, so the volume that was added woke it no more.",
    402620: "A pod was deleted while its victim was being marked, the watch had shown it, and the victim was deleted "
    "all the same.",
    403719: "In a window of two slots no back-off ended early. Two pods waited it out, the less important one of them "
    "9 ms less: it took the room that an eviction had made, and a second eviction was needed.",
    1002112: "The judge counted a pod on the node of a Binding that had been refused, and called an eviction for "
    "another pod needless: the mistake was the judge's.",
    1014441: "The proposal of a more important pod kept a pod from preempting. The binder put that pod on another "
    "node, which no event told: the pod slept.",
    916703: "A pod was bound and deleted while no watcher could write, so the mirror never showed it bound. It counted "
    "for 5 s, and a pod that was rejected because of it slept.",
    298: "A pod was bound and deleted within the time in which a watcher gathers events: the mirror never showed it, "
    "nor its end, and a pod that was rejected because of it slept.",
    392: "A Lease is deleted and the store is lost: no copy of the numbers is left, and they begin again.",
    1060920: "NATS's disk was full: a scorer kept the bytes of each ranking that was not stored, since it waited for "
    "a copy to come back, up to 1,024 of them.",
    1063361: "A pod was bound and deleted at once, and its message delivered again: the ranking of it counted the pod "
    "once more, and a pod that was rejected because of it slept.",
    1077597: "The judge did not count a pod that waited with its place taken, and called an eviction needless: the "
    "mistake was the judge's.",
    7002745: "A pod was bound and deleted within one step of the watcher, which wrote neither: the scorer counted it "
    "until the next watermark, the binder did not, and a pod was ranked again each second for up to half a minute.",
}
