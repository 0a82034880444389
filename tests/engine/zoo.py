"""Small models of many kinds, each with a loss and a batch."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

Batch = dict[str, Tensor]
Loss = Callable[[nn.Module, Batch], Tensor | tuple[Tensor, ...]]


@dataclass(frozen=True)
class Animal:
    """One architecture: ``make`` builds model, loss and batch under a fixed seed."""

    name: str
    make: Callable[[], tuple[nn.Module, Loss, Batch]]
    is_random: bool = False


ZOO: list[Animal] = []


def animal(
    *, is_random: bool = False
) -> Callable[[Callable[[], tuple[nn.Module, Loss, Batch]]], None]:
    def register(make: Callable[[], tuple[nn.Module, Loss, Batch]]) -> None:
        ZOO.append(Animal(make.__name__, make, is_random))

    return register


def classify(model: nn.Module, batch: Batch) -> Tensor:
    return functional.cross_entropy(model(batch["x"]), batch["y"])


def reconstruct(model: nn.Module, batch: Batch) -> Tensor:
    return functional.mse_loss(model(batch["x"]), batch["x"])


def images(channels: int = 1, size: int = 8, classes: int = 4) -> Batch:
    return {
        "x": torch.randn(4, channels, size, size),
        "y": torch.randint(0, classes, (4,)),
    }


def tokens(length: int = 6, vocabulary: int = 11) -> Batch:
    return {
        "x": torch.randint(0, vocabulary, (4, length)),
        "y": torch.randint(0, vocabulary, (4, length)),
    }


def next_token(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch["x"])
    return functional.cross_entropy(logits.flatten(0, 1), batch["y"].flatten())


@animal()
def mlp() -> tuple[nn.Module, Loss, Batch]:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    return model, classify, {"x": torch.randn(4, 6), "y": torch.randint(0, 4, (4,))}


@animal()
def logistic_regression() -> tuple[nn.Module, Loss, Batch]:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return functional.binary_cross_entropy_with_logits(
            model(batch["x"]).squeeze(1), batch["y"]
        )

    batch = {"x": torch.randn(8, 5), "y": torch.randint(0, 2, (8,)).float()}
    return nn.Linear(5, 1), loss, batch


@animal()
def lenet() -> tuple[nn.Module, Loss, Batch]:
    model = nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2)),
        *(nn.Conv2d(4, 6, 3), nn.Tanh(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 4)),
    )
    return model, classify, images()


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.a = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn_a = nn.BatchNorm2d(channels)
        self.b = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn_b = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.bn_a(self.a(x)))
        return functional.relu(x + self.bn_b(self.b(y)))


@animal()
def residual_net() -> tuple[nn.Module, Loss, Batch]:
    model = nn.Sequential(
        *(nn.Conv2d(3, 4, 3, stride=2, padding=1), Residual(4), Residual(4)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4)),
    )
    return model, classify, images(3)


@animal()
def depthwise_separable() -> tuple[nn.Module, Loss, Batch]:
    model = nn.Sequential(
        *(nn.Conv2d(3, 6, 1), nn.BatchNorm2d(6), nn.ReLU6()),
        *(nn.Conv2d(6, 6, 3, padding=1, groups=6), nn.BatchNorm2d(6), nn.Hardswish()),
        *(nn.Conv2d(6, 4, 1), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )
    return model, classify, images(3)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 4, 3, padding=1)
        self.deep = nn.Conv2d(4, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.out = nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        a = functional.leaky_relu(self.down(x), 0.1)
        b = functional.elu(self.deep(functional.max_pool2d(a, 2)))
        return self.out(torch.cat([a, self.up(b)], dim=1))


@animal()
def u_net() -> tuple[nn.Module, Loss, Batch]:
    return UNet(), reconstruct, images()


@animal()
def autoencoder() -> tuple[nn.Module, Loss, Batch]:
    model = nn.Sequential(
        *(nn.Linear(10, 4), nn.GELU(), nn.Linear(4, 2)),
        *(nn.Linear(2, 4), nn.Softplus(), nn.Linear(4, 10), nn.Sigmoid()),
    )
    return model, reconstruct, {"x": torch.rand(5, 10)}


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(10, 6)
        self.decode = nn.Linear(3, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread = self.encode(x).chunk(2, dim=1)
        z = mean + torch.exp(0.5 * spread) * torch.randn_like(mean)
        return torch.sigmoid(self.decode(z)), mean, spread


@animal(is_random=True)
def vae() -> tuple[nn.Module, Loss, Batch]:
    def loss(model: nn.Module, batch: Batch) -> tuple[Tensor, ...]:
        x, mean, spread = model(batch["x"])
        likeness = functional.binary_cross_entropy(
            x, batch["x"], reduction="sum"
        ) / len(x)
        prior = -0.5 * torch.mean(
            torch.sum(1 + spread - mean.pow(2) - spread.exp(), dim=1)
        )
        return likeness + prior, likeness.detach(), prior.detach()

    return Vae(), loss, {"x": torch.rand(5, 10)}


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.norm_a, self.norm_b = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            *(nn.Linear(width, 2 * width), nn.GELU(approximate="tanh")),
            *(nn.Linear(2 * width, width), nn.Dropout(dropout)),
        )
        self.heads, self.dropout, self.causal = heads, dropout, causal

    def forward(self, x: Tensor) -> Tensor:
        b, t, w = x.shape
        shape = (b, t, self.heads, w // self.heads)
        q, k, v = (
            part.view(shape).transpose(1, 2)
            for part in self.qkv(self.norm_a(x)).chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(
            q, k, v, is_causal=self.causal, dropout_p=self.dropout
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, w))
        return x + self.mlp(self.norm_b(x))


class Gpt(nn.Module):
    def __init__(self, dropout: float = 0.0, tied: bool = False) -> None:
        super().__init__()
        self.token = nn.Embedding(11, 8)
        self.place = nn.Embedding(6, 8)
        self.blocks = nn.Sequential(*(Block(8, 2, dropout, True) for _ in range(2)))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 11, bias=False)
        if tied:
            self.head.weight = self.token.weight

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        return self.head(self.norm(self.blocks(self.token(x) + self.place(places))))


@animal()
def gpt() -> tuple[nn.Module, Loss, Batch]:
    return Gpt(), next_token, tokens()


@animal()
def gpt_with_tied_weights() -> tuple[nn.Module, Loss, Batch]:
    return Gpt(tied=True), next_token, tokens()


@animal(is_random=True)
def gpt_with_dropout() -> tuple[nn.Module, Loss, Batch]:
    return Gpt(dropout=0.2), next_token, tokens()


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.token = nn.Embedding(11, 8)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.token(x)).mean(dim=1))


@animal(is_random=True)
def encoder_with_dropout() -> tuple[nn.Module, Loss, Batch]:
    batch = {"x": torch.randint(0, 11, (4, 6)), "y": torch.randint(0, 4, (4,))}
    return Encoder(), classify, batch


class Vit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, 8, 4, stride=4)
        self.cls = nn.Parameter(torch.zeros(1, 1, 8))
        self.place = nn.Parameter(torch.randn(1, 5, 8) * 0.02)
        self.block = Block(8, 2, 0.0, False)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.patch(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.cls.expand(len(y), -1, -1), y], dim=1) + self.place
        return self.head(self.block(y)[:, 0])


@animal()
def vision_transformer() -> tuple[nn.Module, Loss, Batch]:
    return Vit(), classify, images()


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], layers: int) -> None:
        super().__init__()
        self.token = nn.Embedding(11, 6)
        self.cell = kind(6, 5, num_layers=layers, batch_first=True)
        self.head = nn.Linear(5, 11)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(self.token(x))[0])


@animal()
def lstm() -> tuple[nn.Module, Loss, Batch]:
    return Recurrent(nn.LSTM, 2), next_token, tokens()


@animal()
def gru() -> tuple[nn.Module, Loss, Batch]:
    return Recurrent(nn.GRU, 1), next_token, tokens()


@animal()
def convolutions_1d() -> tuple[nn.Module, Loss, Batch]:
    model = nn.Sequential(
        *(nn.Conv1d(2, 4, 3, dilation=2), nn.GroupNorm(2, 4), nn.ReLU()),
        *(nn.MaxPool1d(2), nn.Conv1d(4, 4, 3), nn.AdaptiveAvgPool1d(1)),
        *(nn.Flatten(), nn.Linear(4, 4)),
    )
    return (
        model,
        classify,
        {"x": torch.randn(4, 2, 16), "y": torch.tensor([0, 1, 2, 3])},
    )


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(11, 6, padding_idx=0)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.token(x).mean(dim=1))


@animal()
def embedding_mean() -> tuple[nn.Module, Loss, Batch]:
    batch = {"x": torch.randint(0, 11, (4, 6)), "y": torch.randint(0, 4, (4,))}
    return Bag(), classify, batch


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(6, 8)
        self.left, self.right = nn.Linear(8, 1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = functional.selu(self.trunk(x))
        return self.left(y).squeeze(-1), self.right(y)


@animal()
def multi_head_regression() -> tuple[nn.Module, Loss, Batch]:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        left, right = model(batch["x"])
        return functional.l1_loss(left, batch["a"]) + functional.smooth_l1_loss(
            right, batch["b"]
        )

    batch = {"x": torch.randn(4, 6), "a": torch.randn(4), "b": torch.randn(4, 4)}
    return Heads(), loss, batch


@animal()
def multi_task() -> tuple[nn.Module, Loss, Batch]:
    def loss(model: nn.Module, batch: Batch) -> tuple[Tensor, ...]:
        left, right = model(batch["x"])
        first = functional.mse_loss(left, batch["a"])
        second = functional.nll_loss(functional.log_softmax(right, dim=1), batch["y"])
        return first + 0.5 * second, first.detach(), second.detach()

    batch = {
        "x": torch.randn(4, 6),
        "a": torch.randn(4),
        "y": torch.randint(0, 4, (4,)),
    }
    return Heads(), loss, batch


@animal()
def siamese() -> tuple[nn.Module, Loss, Batch]:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        far = functional.pairwise_distance(model(batch["a"]), model(batch["b"]))
        same = batch["same"]
        return (same * far.pow(2) + (1 - same) * functional.relu(1 - far).pow(2)).mean()

    model = nn.Sequential(nn.Linear(6, 8), nn.PReLU(), nn.Linear(8, 3))
    batch = {
        "a": torch.randn(4, 6),
        "b": torch.randn(4, 6),
        "same": torch.tensor([0.0, 1.0, 1.0, 0.0]),
    }
    return model, loss, batch


@animal()
def quantile_regression() -> tuple[nn.Module, Loss, Batch]:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        error = batch["y"] - model(batch["x"]).squeeze(1)
        return torch.maximum(0.9 * error, -0.1 * error).mean()

    return nn.Linear(6, 1), loss, {"x": torch.randn(4, 6), "y": torch.randn(4)}


@animal()
def huber_regression() -> tuple[nn.Module, Loss, Batch]:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return functional.huber_loss(
            model(batch["x"]).squeeze(1), batch["y"], delta=0.5
        )

    model = nn.Sequential(nn.Linear(6, 4), nn.Mish(), nn.Linear(4, 1))
    return model, loss, {"x": torch.randn(4, 6), "y": torch.randn(4)}


@animal()
def instance_norm_upsampling() -> tuple[nn.Module, Loss, Batch]:
    model = nn.Sequential(
        *(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.InstanceNorm2d(4), nn.ReLU()),
        *(nn.Upsample(scale_factor=2, mode="nearest"), nn.ZeroPad2d(1)),
        *(nn.Conv2d(4, 2, 3), nn.Upsample(size=(8, 8), mode="bilinear")),
        nn.Conv2d(2, 1, 1),
    )
    return model, reconstruct, images()


@animal()
def label_smoothing_and_frozen() -> tuple[nn.Module, Loss, Batch]:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return functional.cross_entropy(
            model(batch["x"]), batch["y"], label_smoothing=0.1
        )

    model = nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Hardtanh(), nn.Linear(8, 4)
    )
    model[0].weight.requires_grad_(False)
    return model, loss, {"x": torch.randn(4, 6), "y": torch.randint(0, 4, (4,))}
