"""Probes answer with what the machine did, and clean up after themselves."""

from __future__ import annotations

import os
import sys

import pytest

from cocoll.topology import facts


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def test_cross_memory_attach_names_the_reason_or_works() -> None:
    probe = facts.probe_cross_memory_attach()
    assert probe.works == (probe.detail == "a child process read this one")


def test_cross_memory_attach_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # Address 0 is mapped nowhere: the child must report the kernel's refusal, not succeed.
    monkeypatch.setattr(facts.ctypes, "addressof", lambda _: 0)
    probe = facts.probe_cross_memory_attach()
    assert not probe.works
    assert probe.detail == os.strerror(14)


def test_cross_memory_attach_of_a_broken_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/true")
    assert facts.probe_cross_memory_attach() == facts.Probe(False, "no answer")


def test_huge_pages() -> None:
    before = open_descriptors()
    probe = facts.probe_huge_pages()
    assert "shmem_enabled=" in probe.detail
    assert "MADV_COLLAPSE" in probe.detail
    assert open_descriptors() == before


def test_huge_pages_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "MADV_COLLAPSE", 9999)
    before = open_descriptors()
    probe = facts.probe_huge_pages()
    assert not probe.works
    assert os.strerror(22) in probe.detail
    assert open_descriptors() == before
