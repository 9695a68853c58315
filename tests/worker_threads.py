"""Workers that are threads of one process: exchanges without torchrun."""

import threading

import torch

from samebits.train.run.distributed import Workers


class Hub:
    """Where `size` threads meet."""

    def __init__(self, size):
        self.barrier = threading.Barrier(size)
        self.slots = [None] * size

    def run(self, body):
        """`body(worker)` on every worker; what each returned, or the first error."""
        size = len(self.slots)
        results = [None] * size
        errors = []

        def work(rank):
            try:
                results[rank] = body(Thread(self, rank, size))
            except threading.BrokenBarrierError:
                pass
            except BaseException as error:
                errors.append(error)
                self.barrier.abort()

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return results


class Thread(Workers):
    def __init__(self, hub, rank, size):
        self.hub, self.rank, self.size = hub, rank, size

    def meet(self, values):
        """Every worker's values."""
        self.hub.slots[self.rank] = values.clone()
        self.hub.barrier.wait()
        everything = torch.stack(self.hub.slots)
        self.hub.barrier.wait()
        return everything

    def largest(self, values):
        return self.meet(values).amax(0)

    def scatter(self, rows):
        self.sent += rows.nbytes * (self.size - 1) // self.size
        return self.meet(rows)[:, self.rank].contiguous()

    def collect(self, part):
        self.sent += part.nbytes * (self.size - 1)
        return self.meet(part)
