"""A script's beginning, with which a process exits at a chosen step of its work on files."""

COUNTED = """
import io, os, sys
from pathlib import Path

import cv2, tfprep.builder.publish, tfprep.builder.shard

steps = die_at = 0
cv2.setNumThreads(0)
tfprep.builder.publish.write_report = lambda *arguments: ""
os.fsync, os.sync = lambda descriptor: None, lambda: None  # what a killed process wrote stays: before a sync as after it


def counted(function):
    def step(*arguments, **options):
        global steps
        steps += 1
        if steps == die_at:
            os._exit(9)
        return function(*arguments, **options)
    return step


def count(*names):
    "From now on, this process exits at step `die_at`: a call of these functions of `os`, or a file that was opened for writing."
    for name in names:
        setattr(os, name, counted(getattr(os, name)))
    io.open = opened
    Path.replace = lambda self, target: os.replace(self, target)
    Path.rmdir = lambda self: os.rmdir(self)
    def unlink(self, missing_ok=False):
        try:
            os.unlink(self)
        except FileNotFoundError:
            if not missing_ok:
                raise
    Path.unlink = unlink


def opened(file, mode="r", *arguments, open_file=io.open, **options):
    "A file that is opened for writing when the process exits stays empty."
    handle = open_file(file, mode, *arguments, **options)
    if set("wax+") & set(mode):
        counted(lambda: None)()
    return handle


def status(*functions):
    "Run functions in a fork of this process, which has no other thread."
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            for function in functions:
                function()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""
