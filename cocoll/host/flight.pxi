# What control pages say of their ranks.

def inspect_control(address, size_t nbytes):
    """Give what a mapped control page says: for ``cocoll dump``.

    Parameters
    ----------
    address : int
        Where the page is mapped.
    nbytes : int
        How much of it is.

    Returns
    -------
    dict or None
        rank, world_size, pid, token (of the communicator), left, waiting (rank, flag, sequence),
        round (of shrinking; 0: none) and operations, oldest first; None where the memory is no
        control page of this version.
    """
    cdef const Control* control = <const Control*><size_t>address
    if nbytes < sizeof(Control):
        return None
    if control.magic != kControlMagic or control.version != kControlVersion:
        return None
    if nbytes < Control.bytes(control.world_size):
        return None
    return _describe_control(control)


cdef object _describe_control(const Control* control):
    cdef const FlightRecord* record
    operations = []
    for index in range(kFlightRecords + kPointRecords):
        record = &control.flight[index]
        if index >= kFlightRecords:
            record = &control.points[index - kFlightRecords]
        state = flight_state(record)
        if state:
            operations.append({
                "sequence": record.sequence,
                "ticks": record.started_ticks,
                "state": ("", "running", "done", "failed")[state],
                "flight": (record.kind, record.op, record.dtype, record.options, record.root,
                           record.count, record.epilogue, record.algorithm),
            })
    # Messages between two ranks have numbers of their own.
    operations.sort(key=lambda entry: (entry["ticks"], entry["sequence"]))
    waiting = waiting_rank(control)
    return {
        "rank": control.rank,
        "world_size": control.world_size,
        "pid": control.pid,
        "token": control.token,
        "round": survival_round(control),
        "left": has_left(control),
        "waiting": None if waiting < 0 else (waiting, waiting_flag(control),
                                             waiting_sequence(control)),
        "operations": operations,
    }
