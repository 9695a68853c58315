"""Four networks whose losses no data set brings: a VAE, a DQN, a triplet network, a policy.

Each is trained in float32 and in BFP by the same code, from the same weights and with the same
random numbers, and gives a score. The DQN and the policy balance a pole on a cart: Barto, Sutton
and Anderson, "Neuronlike adaptive elements", 1983, in the steps of Gymnasium's CartPole-v0.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from samebits.data import load
from samebits.train import Adam, BFPTensor, GraphedModel, convert, model_input

NUMERICS = ("float32", "bfp")


class Learner:
    """A network and its Adam, in one of the two numerics."""

    def __init__(self, net: nn.Module, numerics: str, lr: float, seed: int) -> None:
        self.bfp = numerics == "bfp"
        self.model = convert(net) if self.bfp else net
        self.call: Callable[..., Any] = GraphedModel(self.model) if self.bfp else self.model
        parameters = list(self.model.parameters())
        if self.bfp:
            self.optimizer: Any = Adam(parameters, lr=lr, seed=seed)
        else:
            self.optimizer = torch.optim.Adam(parameters, lr=lr)

    def __call__(self, x: Tensor) -> Any:
        """The outputs for real inputs, or for what another learner gave."""
        real = self.bfp and not isinstance(x, BFPTensor)
        return self.call(model_input(self.model, x) if real else x)

    def values(self, x: Tensor) -> Tensor:
        """The outputs as real numbers without a gradient."""
        with torch.no_grad():
            y = self(x)
        return y.dequantize() if self.bfp else y

    def learn(self, loss: Tensor, *others: Learner) -> None:
        """One step on a loss, of other learners that it trains, too."""
        loss.backward()
        for each in (self, *others):
            each.optimizer.step()
            each.optimizer.zero_grad()


def layers(*sizes: int) -> nn.Sequential:
    """Linear layers of these sizes with ReLU between them."""
    made: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        made += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*made[:-1])


def digits(part: Literal["train", "test"]) -> tuple[Tensor, Tensor]:
    """Pixels [n, 64] of the bundled digits, and their labels."""
    data = load("digits")
    return data.values(data.images(part)).flatten(1), data.labels(part)


# --- a variational autoencoder ----------------------------------------------------------------

LATENT, VAE_STEPS = 8, 600


def vae(seed: int, numerics: str) -> float:
    """Nats of a test digit: minus the evidence lower bound, the less the better.

    Kingma and Welling, "Auto-encoding variational Bayes", 2014.
    """
    torch.manual_seed(seed)
    encoder = Learner(layers(64, 64, 2 * LATENT), numerics, 0.002, seed)
    decoder = Learner(layers(LATENT, 64, 64), numerics, 0.002, seed + 1)
    x, test = digits("train")[0].clamp(0, 1), digits("test")[0].clamp(0, 1)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(VAE_STEPS):
        batch = x[torch.randint(len(x), (64,), generator=generator)]
        noise = torch.randn(64, LATENT, generator=generator)
        hidden = encoder(batch)
        mu, spread = hidden[:, :LATENT], hidden[:, LATENT:]
        logits = decoder(mu + (0.5 * spread).exp() * noise)
        said = functional.binary_cross_entropy_with_logits(logits, batch, reduction="sum")
        kl = -0.5 * (1 + spread - mu * mu - spread.exp()).sum()
        encoder.learn((said + kl) * (1 / 64), decoder)
    for each in (encoder, decoder):
        each.model.eval()
    mu, spread = encoder.values(test).double().split(LATENT, 1)
    noise = torch.randn(len(test), LATENT, generator=generator)
    logits = decoder.values((mu + (0.5 * spread).exp() * noise).float()).double()
    said = functional.binary_cross_entropy_with_logits(logits, test.double(), reduction="sum")
    kl = -0.5 * (1 + spread - mu**2 - spread.exp()).sum()
    return float(said + kl) / len(test)


# --- a triplet network ------------------------------------------------------------------------

TRIPLET_STEPS = 300


def triplet(seed: int, numerics: str) -> float:
    """Share of test digits whose nearest training digit, as they are embedded, is of their class.

    Schroff, Kalenichenko and Philbin, "FaceNet", 2015: squares of distances, which stay integers.
    """
    torch.manual_seed(seed)
    learner = Learner(layers(64, 64, 8), numerics, 0.002, seed)
    (x, labels), (test, wanted) = digits("train"), digits("test")
    x, labels = x[:500], labels[:500]
    generator = torch.Generator().manual_seed(seed)
    members = [torch.nonzero(labels == c)[:, 0] for c in range(10)]

    def one_of(classes: Tensor) -> Tensor:
        draws = torch.rand(len(classes), generator=generator)
        own = [members[c] for c in classes.tolist()]
        return torch.stack([m[int(d * len(m))] for m, d in zip(own, draws.tolist(), strict=True)])

    for _ in range(TRIPLET_STEPS):
        classes = torch.randint(10, (32,), generator=generator)
        others = (classes + torch.randint(1, 10, (32,), generator=generator)) % 10
        chosen = torch.cat([one_of(classes), one_of(classes), one_of(others)])
        y = learner(x[chosen])
        anchor, same, other = y[:32], y[32:64], y[64:]
        near, far = ((anchor - each).square().sum(1) for each in (same, other))
        learner.learn(functional.relu(near - far + 1.0).mean())
    learner.model.eval()
    nearest = torch.cdist(learner.values(test).double(), learner.values(x).double()).argmin(1)
    return float((labels[nearest] == wanted).double().mean())


# --- a pole on a cart -------------------------------------------------------------------------

LIMIT = 200  # steps of an episode
SCALE = torch.tensor([2.4, 3.0, 0.21, 3.0])  # of position, speed, angle and its speed


class Carts:
    """Carts with poles, which are pushed to the left (0) or to the right (1)."""

    def __init__(self, count: int, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.state = torch.zeros(count, 4)
        self.age = torch.zeros(count, dtype=torch.int64)
        self.reset(torch.ones(count, dtype=torch.bool))

    def reset(self, which: Tensor) -> None:
        """Let some of them begin again."""
        fresh = torch.rand(self.state.shape, generator=self.generator) * 0.1 - 0.05
        self.state = torch.where(which[:, None], fresh, self.state)
        self.age[which] = 0

    def seen(self) -> Tensor:
        """The states, scaled, [carts, 4]."""
        return self.state / SCALE

    def push(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Move on by 0.02 s; which poles fell, and which episodes ended."""
        x, speed, angle, turn = self.state.unbind(1)
        sine, cosine = angle.sin(), angle.cos()
        by = (actions * 20.0 - 10.0 + 0.05 * turn**2 * sine) / 1.1
        bent = (9.8 * sine - cosine * by) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        pushed = by - 0.05 * bent * cosine / 1.1
        moves = (speed, pushed, turn, bent)
        self.state = torch.stack(
            [v + 0.02 * d for v, d in zip((x, speed, angle, turn), moves, strict=True)], 1
        )
        self.age += 1
        fell = (self.state[:, 0].abs() > 2.4) | (self.state[:, 2].abs() > math.radians(12))
        return fell, fell | (self.age >= LIMIT)


DQN_STEPS, WARM, REPLAY = 5000, 500, 64


def dqn(seed: int, numerics: str) -> float:
    """Mean steps of 20 episodes of the policy that was learned, of at most 200.

    Mnih et al., "Human-level control through deep reinforcement learning", 2015.
    """
    torch.manual_seed(seed)
    net = layers(4, 64, 64, 2)
    learner = Learner(net, numerics, 0.0005, seed)
    target = Learner(layers(4, 64, 64, 2), numerics, 0.0, seed)
    target.model.load_state_dict(learner.model.state_dict())
    carts, generator = Carts(1, seed), torch.Generator().manual_seed(seed)
    before, after = torch.zeros(DQN_STEPS, 4), torch.zeros(DQN_STEPS, 4)
    actions, going = torch.zeros(DQN_STEPS, 1, dtype=torch.int64), torch.zeros(DQN_STEPS)
    for step in range(DQN_STEPS):
        seen = carts.seen()
        draws = torch.rand(2, generator=generator).tolist()
        if draws[0] < max(0.05, 1 - step / 2000):
            action = int(draws[1] * 2)
        else:
            action = int(learner.values(seen).argmax())
        fell, ended = carts.push(torch.tensor([action]))
        before[step], after[step], actions[step] = seen[0], carts.seen()[0], action
        going[step] = 1.0 - float(fell)
        carts.reset(ended)
        if step < WARM:
            continue
        at = torch.randint(step + 1, (REPLAY,), generator=generator)
        best = target.values(after[at]).amax(1).float()
        taken = learner(before[at]).gather(1, actions[at])[:, 0]
        learner.learn(functional.smooth_l1_loss(taken, 1.0 + 0.99 * going[at] * best))
        if step % 200 == 0:
            target.model.load_state_dict(learner.model.state_dict())
    tested, total, alive = Carts(20, 1000 + seed), torch.zeros(20), torch.ones(20)
    for _ in range(LIMIT):
        total += alive
        _, ended = tested.push(learner.values(tested.seen()).argmax(1))
        alive *= 1.0 - ended.float()
    return float(total.mean())


POLICY_UPDATES, CARTS = 40, 16


def policy(seed: int, numerics: str) -> float:
    """Mean steps of the episodes of the last ten updates, of at most 200.

    Williams, "Simple statistical gradient-following algorithms", 1992: REINFORCE, with returns
    that are scaled to mean 0 and variance 1.
    """
    torch.manual_seed(seed)
    learner = Learner(layers(4, 64, 2), numerics, 0.01, seed)
    carts, generator = Carts(CARTS, seed), torch.Generator().manual_seed(seed)
    lengths = []
    for _ in range(POLICY_UPDATES):
        carts.reset(torch.ones(CARTS, dtype=torch.bool))
        alive, seen, chosen, there = torch.ones(CARTS), [], [], []
        while bool(alive.any()):
            seen.append(carts.seen())
            chances = learner.values(seen[-1]).double().softmax(1)
            chosen.append(torch.multinomial(chances, 1, generator=generator))
            there.append(alive.clone())
            _, ended = carts.push(chosen[-1][:, 0])
            alive *= 1.0 - ended.float()
        counted = torch.stack(there)
        worth = torch.zeros(CARTS)
        returns = torch.zeros_like(counted)
        for t in reversed(range(len(counted))):
            worth = counted[t] * (1.0 + 0.99 * worth)
            returns[t] = worth
        kept = counted.flatten() > 0
        values = returns.flatten()[kept]
        values = (values - values.mean()) / values.std()
        scores = functional.log_softmax(learner(torch.cat(seen)[kept]), 1)
        taken = scores.gather(1, torch.cat(chosen)[kept])[:, 0]
        learner.learn(-(taken * values).mean())
        lengths.append(float(counted.sum()) / CARTS)
    return sum(lengths[-10:]) / 10


TASKS: dict[str, Callable[[int, str], float]] = {
    "VAE": vae,
    "DQN": dqn,
    "triplet network": triplet,
    "policy gradient": policy,
}
SCORES = {
    "VAE": "nats a test digit",
    "DQN": "steps balanced, of 200",
    "triplet network": "nearest neighbour's class",
    "policy gradient": "steps balanced, of 200",
}
