"""Masks of names: each word outside the vocabulary is replaced, by the same mask everywhere in a recording.

Separators are kept, so equal texts stay equal and composed names stay composed, such as the claim ``<pod>-<volume>``.
Masks are random and kept in memory only, so that names cannot be tried out.

Uids keep their order, which decides between victims of equal priority and age.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from hashlib import blake2b
from random import Random, SystemRandom
from string import ascii_lowercase, digits
from typing import Final

from berth.api.kinds import WATCHED_KINDS
from berth.errors import DecodeError
from berth.messages.subjects import Attempt, Uid

_UID: Final = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# Characters of a word. All non-ASCII characters count, because accents and vowel signs reveal a lot.
_CHARACTERS: Final = "[0-9A-Za-z\x80-\U0010ffff]"
_PARTS: Final = re.compile(rf"(?P<uid>\b{_UID}\b)|{_CHARACTERS}+")
_WORD: Final = re.compile(f"{_CHARACTERS}+")
_NUMBER: Final = re.compile(r"\d{1,6}")  # a longer number may be an account
_AMOUNT: Final = re.compile(r"\d{1,6}(?:\.\d{1,6})?(?:/\d{1,6})?(?:ms|s|min|h|B|kB|MB|GB|MB/s|%|m|[KMGTPE]i)?")
_PUNCTUATION: Final = " ,:;.()[]{}'\""
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)")
_QUANTITY: Final = re.compile(r"[+-]?\d{1,19}(?:\.\d{1,19})?(?:[eE][+-]?\d{1,3}|m|n|u|k|[KMGTPE]i?)?")
_DOTTED: Final = re.compile(r"\d{1,6}(?:\.\d{1,6})*")
# Texts, numbers and names of expressions.
_IN_EXPRESSIONS: Final = re.compile(
    rf"(?P<quote>[\"'])(?P<text>(?:\\.|(?!(?P=quote)).)*)(?P=quote)|(?P<number>(?<![0-9A-Za-z_])\d[\w.]*)|{_CHARACTERS}+"
)
# Tries for a mask as long as its word; then it becomes a character longer.
_DRAWS: Final = 64
# Characters of a text that is likely to come again: names, and no long annotations.
_REMEMBERED: Final = 300
_UID_BITS: Final = 128
_FACTOR_BITS: Final = 60
_MASKED_UID_DIGITS: Final = 48  # hexadecimal: 128 + 61 bits and the addend


class Mask:
    """The masks of one recording. ``kept``: further words, such as plugins' names, by which they are found."""

    def __init__(self, kept: Iterable[str] = (), random: Random | None = None) -> None:
        self._random = random or SystemRandom()
        self._kept = frozenset(word for name in kept for word in _WORD.findall(name))
        self._words: dict[str, str] = {}
        self._used: set[str] = set()
        self._names: dict[str, str] = {}

    def name(self, text: str) -> str:
        found = self._names.get(text)
        if found is None:
            found = _PARTS.sub(self._part, text)
            if len(text) <= _REMEMBERED:
                self._names[text] = found
        return found

    def value(self, text: str) -> str:
        """A label's value. A number is kept, because selectors compare numbers."""
        return text if _NUMBER.fullmatch(text) else self.name(text)

    def text(self, text: str) -> str:
        """Mask the text, except numbers and amounts."""
        return " ".join(map(self._token, text.split(" ")))

    def attempt(self, text: str) -> str:
        try:
            attempt = Attempt.parse(text)
        except DecodeError:
            return self.name(text)
        return str(Attempt(uid=Uid(self.name(attempt.uid)), term=attempt.term, n=attempt.n))

    def time(self, text: str) -> str:
        return text if _TIME.fullmatch(text) else self.name(text)

    def quantity(self, text: str) -> str:
        return text if _QUANTITY.fullmatch(text) else self.name(text)

    def expression(self, text: str) -> str:
        """A selector of devices: its numbers are kept, and its texts masked as devices' are."""
        return _IN_EXPRESSIONS.sub(self._in_expression, text)

    def literal(self, text: str) -> str:
        """A text or a version of a device. Quantities and versions are kept, because selectors compare them."""
        return text if _DOTTED.fullmatch(text) else self.quantity(text)

    def version(self, text: str) -> str:
        """A resourceVersion is kept if it is a number."""
        return text if text.isascii() and text.isdecimal() else self.name(text)

    def address(self, text: str) -> str:
        """An address of a node; addresses that every machine has are kept."""
        return text if text in _EVERYWHERE else self.name(text)

    def url(self, text: str) -> str:
        return f"http://{self.name('-'.join(_WORD.findall(text.partition('://')[2] or text)))}"

    def _in_expression(self, found: re.Match[str]) -> str:
        if quote := found["quote"]:
            return f"{quote}{self.literal(found['text'])}{quote}"
        return found[0] if found["number"] else self.name(found[0])

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
        """An unused word, of the same length if possible, because names have a maximum length."""
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
        # A UUID's factor and addend, and the key of the noise below the factor.
        factor = self._random.getrandbits(_FACTOR_BITS) | 1 << _FACTOR_BITS
        return factor, self._random.getrandbits(_UID_BITS + _FACTOR_BITS), self._random.randbytes(32)


_EVERYWHERE: Final = frozenset({"", "0.0.0.0", "127.0.0.1", "::", "::1"})  # noqa: S104 - names of addresses, none is listened on


def without_names(text: str) -> tuple[str, ...]:
    """The parts of a sentence in order, with ``*`` for each masked word: equal for equal sentences."""
    return tuple(sorted(_skeleton(part) for part in text.replace(". ", ", ").rstrip(".").split(", ")))


def _skeleton(text: str) -> str:
    return " ".join(
        token if _AMOUNT.fullmatch(token.strip(_PUNCTUATION)) else _PARTS.sub(_star, token) for token in text.split(" ")
    )


def _star(found: re.Match[str]) -> str:
    return found[0] if found[0].lower() in WORDS else "*"


# --- the kept words: Kubernetes', clouds' and berth's own, which identify no person,
# company or cluster. A word missing here is masked.

_KUBERNETES: Final = """
1gi 2mi account affinity alpha always amd64 annotations api apiversion app apps arch arm arm64 attachable autoscaler
available bandwidth basic batch beta bind binding block both bound by candidate capacity cluster completed completion
component config consumer container containersready control controller controllers coordination core cpu critical
cronjob csi daemonset default deployment disk diskpressure disruption disruptiontarget doesnotexist donotschedule
egress endpoint ephemeral ephemeralstorage equal evict evictiontime exclude exists extended external externaldns
externalip failed failure false filesystem first fpga gates generation gpu gt hash honor hostname hugepages
ifnotpresent ignore image immediate in index ingress initialized instance internaldns internalip io is job k8s kind
kube kubelet kubernetes kubescheduler label labels lease leases leastallocated limits link linux list load local lost
lt managed master memory memorypressure message metadata migrated mostallocated name namespace network
networkunavailable never node nodes noexecute noschedule not notin ordinal out part partition pending pidpressure
plane plugins pod podcontroller podgroupinitiallyscheduled podgroupscheduled pods podscheduled podsignature policy
ppc64le preemptionbyscheduler
preemptlowerpriority preferavoidpods prefernoschedule preferred priority provisioned provisioner pullpolicy pv pvc
readonlymany readwritemany readwriteonce readwriteoncepod ready reason receive reference region relative release
released requestedtocapacityratio requests required riscv64 role running s390x safe scalar scheduleanyway scheduler
scheduling schedulinggated sctp selected service shutdown storage succeeded system taint tcp template topology
transmit true type udp uid unavailable uninitialized unknown unreachable unschedulable v1 v1alpha1 v1beta1 v1beta2
v1beta3 v2 version volume volumes waitforfirstconsumer waits windows worker x zone
"""
_PROVIDERS: Final = """
amazonaws amd aws azure bond cinder cloud com csi dev docker ebs en eth gce gke google http https intel latest
microsoft net nvidia openstack org pd portworx wheel
"""
_SENTENCES: Final = """
a about active after again ago all allocatable allow allowed already an and anti any are as ask asked asks at attempt
attempts available awaiting b backoff because been before being belongs berth best better beyond binder bindings but
bytes can candidates cannot capacity change changed changes claim claims class collector condition conditions conflict
conflicting constraint constraints converting could count create deleted didn disks do does doesn domain driver enough
error estimated eviction exceed exceeds exception existing expected extender extenders failed feasible filter fit flight
for found free from gated get gib given got group grouped groups had has have held help helpful hint how immediate in
inactive incoming incomplete insufficient into it its itself kept kib known label lacks last lately least left less like
limit longer lower many match matched matches matching max maximum meet members mib minresources mirror missing more
must named nearer needed needs newer next no node nominated none nor normal nothing now number numbers object of old on
one only or order orders other others packing persistentvolume persistentvolumeclaim persistentvolumeclaims pib place
placed placement please plugin ports possible preempted preemption proposals proposed ranked ranking recovering rejected
requested requests resource resources room rules runs s sample samples satisfied satisfy saturated schedule score scorer
scorers second seconds see seen selector server since so some space spread still sum t taints tenant than that the their
them then there these they this tib tightly time to tolerate tolerated too took translate unbound undecodable under
unresolvable until untolerated unusable used variable versions very victim victims view violate volumes waited waiting
want was watch watcher were what when where which while why will with without would written yet
"""
# Of expressions that select devices.
_EXPRESSIONS: Final = """
add all allowmultipleallocations as asinteger attributes bind bool capacity cel compareto contains device double
driver endswith exactcount exists_one filter find findall format fromclaim fromclass has hasvalue indexof int
isgreaterthan isinteger islessthan isquantity issemver issorted join lastindexof list lowerascii major map matches max
min minor none null of optional optmap orvalue patch quantity replace semver sets sign size slice sort split
startswith string sub sum trim uint upperascii
"""
_KINDS: Final = {kind.kind.lower() for kind in WATCHED_KINDS}
WORDS: Final = frozenset(f"{_KUBERNETES} {_PROVIDERS} {_SENTENCES} {_EXPRESSIONS}".split()) | _KINDS  # lower case
