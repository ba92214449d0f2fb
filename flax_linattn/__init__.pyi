from flax_linattn import bench as bench
from flax_linattn import checkpoint as checkpoint
from flax_linattn import control as control
from flax_linattn import data as data
from flax_linattn import estimators as estimators
from flax_linattn import inference as inference
from flax_linattn import models as models
from flax_linattn import nn as nn
from flax_linattn import ops as ops
from flax_linattn import serve as serve
from flax_linattn import storage as storage
from flax_linattn import tasks as tasks
from flax_linattn import training as training
from flax_linattn import typing as typing

__version__: str
