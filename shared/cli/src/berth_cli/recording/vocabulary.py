"""The words that an anonymised recording keeps: those of Kubernetes, of clouds, and of berth's own sentences.

They name no person, company or cluster. Every other word is masked, so a word that is missing here is masked too.
"""

from __future__ import annotations

from typing import Final

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
