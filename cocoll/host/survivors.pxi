# What the ranks that are left of a host tell each other.

cdef class Survivors:
    """The pages of a communicator that has ended, for those who go on without the others.

    Local: nothing here waits but `doze`. See ``host/survivors.h`` for what the words mean.

    Parameters
    ----------
    comm : CommunicatorBase
        The communicator; all its ranks are on this host.
    """

    cdef CommunicatorBase comm
    cdef HostSurvivors* host

    def __cinit__(self, CommunicatorBase comm):
        self.comm = comm
        self.host = new HostSurvivors(&comm.session.get().endpoint)

    def __dealloc__(self):
        del self.host

    def announce(self, uint64_t round):
        """Say that this rank has come to a round."""
        self.host.announce(round)

    def announced(self, int peer):
        """Give the round that a rank has come to, 0 before the first."""
        return self.host.announced(peer)

    def has_gone(self, int peer):
        """Whether a rank will come to no round any more: it has closed its end, or died."""
        return self.host.has_gone(peer)

    def propose(self, uint64_t round, members):
        """Propose who takes part in a round; the first proposal holds."""
        cdef vector[int32_t] ranks = members
        self.host.propose(round, ranks)

    def decided(self):
        """Give the last round whose members are decided (0: none), and the members."""
        cdef vector[int32_t] members
        cdef uint64_t round = self.host.decided(&members)
        return round, list(members)

    def conclude(self, uint64_t round, bint succeeded):
        """Say how a round has ended; gives whether it has succeeded, which the first word says."""
        return self.host.conclude(round, succeeded) == 1

    def outcome(self, uint64_t round):
        """Whether a round has succeeded; None while it is open."""
        cdef int32_t word = self.host.outcome(round)
        if word < 0:
            return None
        return word == 1

    def post(self, uint64_t turn, uint64_t total_bytes, bytes part):
        """Say something to all: a part of at most `letter_bytes`."""
        self.host.post(turn, total_bytes, part, len(part))

    def read(self, int peer, uint64_t turn):
        """Give the total and the whole letter of a rank's turn; None where it has not come."""
        cdef const Letter* letter = self.host.letter(peer, turn)
        cdef uint64_t total_bytes
        cdef bytes payload
        if letter == NULL:
            return None
        total_bytes = letter.total_bytes
        payload = PyBytes_FromStringAndSize(<const char*>letter.payload, kLetterBytes)
        # Overwritten meanwhile: the round has failed.
        if self.host.letter(peer, turn) == NULL:
            return None
        return total_bytes, payload

    @property
    def letter_bytes(self):
        """How much one letter holds."""
        return kLetterBytes

    def doorbell(self):
        """Give the number that changes when a rank says something; `doze` wants it."""
        return self.host.doorbell()

    def doze(self, uint32_t seen, double seconds):
        """Sleep until a rank says something, or for a time."""
        cdef int64_t nanoseconds = <int64_t>(seconds * 1e9)
        with nogil:
            self.host.doze(seen, nanoseconds)
