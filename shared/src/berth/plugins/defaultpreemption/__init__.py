"""DefaultPreemption: evicts less important pods, as few as possible, to make room for an important one."""
