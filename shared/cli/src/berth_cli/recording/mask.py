"""Masks of names: another word for each word that is not in the vocabulary, the same one everywhere in a recording.

Words are masked, and what separates them is kept. So whatever was equal stays equal, and names that are made of others
stay so: a key of a pod and its namespace, an image and its tag, the claim ``<pod>-<volume>``. Masks are drawn at
random and kept in memory only, so nobody can try a name on them.

Uids keep their order too, by which victims of one priority and age are put in order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from hashlib import blake2b
from random import Random, SystemRandom
from string import ascii_lowercase, digits
from typing import Final

from berth.errors import DecodeError
from berth.messages.subjects import Attempt, Uid

_UID: Final = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_CHARACTERS: Final = "[0-9A-Za-z\x80-\U0010ffff]"
"""Of a word. What is not ASCII separates nothing: an accent or a vowel that is a character of its own says a lot."""
_PARTS: Final = re.compile(rf"(?P<uid>\b{_UID}\b)|{_CHARACTERS}+")
_WORD: Final = re.compile(f"{_CHARACTERS}+")
_NUMBER: Final = re.compile(r"\d{1,6}")
"""A longer one may be an account."""
_AMOUNT: Final = re.compile(r"\d{1,6}(?:\.\d{1,6})?(?:/\d{1,6})?(?:ms|s|min|h|B|kB|MB|GB|MB/s|%)?")
_PUNCTUATION: Final = " ,:;.()[]{}'\""
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)")
_QUANTITY: Final = re.compile(r"[+-]?\d{1,19}(?:\.\d{1,19})?(?:[eE][+-]?\d{1,3}|m|n|u|k|[KMGTPE]i?)?")
_DRAWS: Final = 64
"""Tries for a mask as long as its word, after which it is a character longer."""
_REMEMBERED: Final = 300
"""Characters of a text that is likely to come again: names, and no long annotations."""
_UID_BITS: Final = 128
_FACTOR_BITS: Final = 60
_MASKED_UID_DIGITS: Final = 48
"""Hexadecimal: enough for 128 + 61 bits and what is added."""


class Mask:
    """The masks of one recording. ``kept`` are further words: the names of plugins, by which they are found."""

    def __init__(self, kept: Iterable[str] = (), random: Random | None = None) -> None:
        self._random = random or SystemRandom()
        self._kept = frozenset(word for name in kept for word in _WORD.findall(name))
        self._words: dict[str, str] = {}
        self._used: set[str] = set()
        self._names: dict[str, str] = {}

    def name(self, text: str) -> str:
        """A name, or several with something between them."""
        found = self._names.get(text)
        if found is None:
            found = _PARTS.sub(self._part, text)
            if len(text) <= _REMEMBERED:
                self._names[text] = found
        return found

    def value(self, text: str) -> str:
        """A label's value. A number is kept: selectors compare them by size."""
        return text if _NUMBER.fullmatch(text) else self.name(text)

    def text(self, text: str) -> str:
        """A sentence, in which numbers and amounts are kept."""
        return " ".join(map(self._token, text.split(" ")))

    def attempt(self, text: str) -> str:
        """An attempt, with its term and number."""
        try:
            attempt = Attempt.parse(text)
        except DecodeError:
            return self.name(text)
        return str(Attempt(uid=Uid(self.name(attempt.uid)), term=attempt.term, n=attempt.n))

    def time(self, text: str) -> str:
        """A time as the API writes it is kept."""
        return text if _TIME.fullmatch(text) else self.name(text)

    def quantity(self, text: str) -> str:
        """A quantity is kept."""
        return text if _QUANTITY.fullmatch(text) else self.name(text)

    def version(self, text: str) -> str:
        """A resourceVersion is kept, as far as it is a number."""
        return text if text.isascii() and text.isdecimal() else self.name(text)

    def address(self, text: str) -> str:
        """An address of a node; those that every machine has are kept."""
        return text if text in _EVERYWHERE else self.name(text)

    def url(self, text: str) -> str:
        """An address that can be one, and is nobody's."""
        return f"http://{self.name('-'.join(_WORD.findall(text.partition('://')[2] or text)))}"

    def _part(self, found: re.Match[str]) -> str:
        return self._uuid(found[0]) if found["uid"] else self._word(found[0])

    def _word(self, word: str) -> str:
        if word.lower() in WORDS or word in self._kept:
            return word
        mask = self._words.get(word)
        if mask is None:
            mask = self._words[word] = self._draw(word)
            self._used.add(mask)
        return mask

    def _draw(self, word: str) -> str:
        """A word that is in use nowhere, as long as can be had: names have a length that must not be exceeded."""
        length, is_number = len(word), word.isascii() and word.isdecimal()
        taken = {word, *self._kept}
        while True:
            for _ in range(_DRAWS):
                rest = digits if is_number else ascii_lowercase + digits
                first = self._random.choice(digits if is_number else ascii_lowercase)
                mask = first + "".join(self._random.choices(rest, k=length - 1))
                if mask not in self._used and mask not in WORDS and mask not in taken:
                    return mask
            length += 1

    def _token(self, token: str) -> str:
        core = token.strip(_PUNCTUATION)
        return token if _AMOUNT.fullmatch(core) else self.name(token)

    def _uuid(self, uid: str) -> str:
        factor, shift, key = self._order
        noise = int.from_bytes(blake2b(uid.encode(), key=key, digest_size=8).digest()) % factor
        return f"{int(uid.replace('-', ''), 16) * factor + shift + noise:0{_MASKED_UID_DIGITS}x}"

    @cached_property
    def _order(self) -> tuple[int, int, bytes]:
        """By what a UUID is multiplied, what is added, and the key of the noise below the factor."""
        factor = self._random.getrandbits(_FACTOR_BITS) | 1 << _FACTOR_BITS
        return factor, self._random.getrandbits(_UID_BITS + _FACTOR_BITS), self._random.randbytes(32)


_EVERYWHERE: Final = frozenset({"", "0.0.0.0", "127.0.0.1", "::", "::1"})  # noqa: S104 - names of addresses, none is listened on


def without_names(text: str) -> tuple[str, ...]:
    """The parts of a sentence in order, with ``*`` for each word that is masked: equal for equal sentences."""
    return tuple(sorted(_skeleton(part) for part in text.replace(". ", ", ").rstrip(".").split(", ")))


def _skeleton(text: str) -> str:
    return " ".join(
        token if _AMOUNT.fullmatch(token.strip(_PUNCTUATION)) else _PARTS.sub(_star, token) for token in text.split(" ")
    )


def _star(found: re.Match[str]) -> str:
    return found[0] if found[0].lower() in WORDS else "*"


# --- the words that are kept: those of Kubernetes, of clouds, and of berth's own sentences, which name no person,
# company or cluster. A word that is missing here is masked.

_KUBERNETES: Final = """
1gi 2mi account affinity alpha always amd64 annotations api apiversion app apps arch arm arm64 attachable autoscaler
available bandwidth basic batch beta bind binding block both bound by candidate capacity cluster completed completion
component config consumer container containersready control controller controllers coordination core cpu critical
cronjob csi csidriver csinode csistoragecapacity daemonset default deployment disk diskpressure disruption
disruptiontarget doesnotexist donotschedule egress endpoint ephemeral ephemeralstorage equal evict evictiontime
exclude exists extended external externaldns externalip failed failure false filesystem first fpga gates generation
gpu gt hash honor hostname hugepages ifnotpresent ignore image immediate in index ingress initialized instance
internaldns internalip io is job k8s kind kube kubelet kubernetes kubescheduler label labels lease leases
leastallocated limits link linux list load local lost lt managed master memory memorypressure message metadata
migrated mostallocated name namespace network networkunavailable never node nodes noexecute noschedule not notin
ordinal out part partition pending pidpressure plane plugins pod podcontroller poddisruptionbudget pods podscheduled
podsignature policy ppc64le preemptionbyscheduler preemptlowerpriority preferavoidpods prefernoschedule preferred
priority provisioned provisioner pullpolicy pv pvc readonlymany readwritemany readwriteonce readwriteoncepod ready
reason receive reference region relative release released replicaset replicationcontroller requestedtocapacityratio
requests required riscv64 role running s390x safe scalar scheduleanyway scheduler scheduling schedulinggated sctp
selected service shutdown statefulset storage storageclass succeeded system taint tcp template topology transmit true
type udp uid unavailable uninitialized unknown unreachable unschedulable v1 v1alpha1 v1beta1 v1beta2 v1beta3 v2
version volume volumeattachment volumes waitforfirstconsumer waits windows worker zone
"""
_PROVIDERS: Final = """
amazonaws amd aws azure bond cinder cloud com csi dev docker ebs en eth gce gke google http https intel latest
microsoft net nvidia openstack org pd portworx wheel
"""
_SENTENCES: Final = """
a about active after again ago all allocatable allow allowed already an and anti any are as asked at attempt attempts
available awaiting backoff because been before being belongs berth best better binder bindings but bytes can
candidates cannot capacity change changed changes claim claims class collector condition conditions conflict
conflicting constraint constraints converting could count create deleted didn disks doesn domain driver enough error
estimated eviction exceed exceeds exception existing expected extender extenders failed feasible filter fit flight for
found free from gated get given got had has have held help helpful hint how immediate in inactive incoming
insufficient into it its itself kept known lacks last lately left less limit longer lower many match matched matches
matching max maximum meet mirror missing more must named nearer needs newer next no node nominated none normal nothing
now number numbers object of old on one only or other others persistentvolume persistentvolumeclaim
persistentvolumeclaims placed please plugin ports possible preempted preemption proposals proposed ranked ranking
recovering rejected requested requests resource resources rules s sample samples satisfied satisfy saturated schedule
score scorer scorers second seconds see seen selector server since so some space spread still t taints tenant than
that the their then there these they this time to tolerate tolerated too took translate unbound undecodable under
unresolvable until untolerated used variable versions very victim victims view violate volumes waited waiting want was
watch watcher were what when where which while why will with without would written yet
"""
WORDS: Final = frozenset(f"{_KUBERNETES} {_PROVIDERS} {_SENTENCES}".split())
"""In small letters."""
