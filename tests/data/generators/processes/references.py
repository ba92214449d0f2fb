"""Processes by their rates alone, in plain loops: what every fast form must agree with."""

import math

import numpy as np
from scipy import integrate

from flax_linattn.data.generators.processes import (
    HawkesProcess,
    IndependentEventTypes,
    PoissonProcess,
    RenewalProcess,
    SinePoisson,
)


def poisson_rates(process, t, history, begin):
    return process.rates


def sine_rates(process, t, history, begin):
    angle = 2 * math.pi * t / process.period + process.phase
    return np.array([process.mean * (1 + process.amplitude * math.sin(angle))])


def renewal_rates(process, t, history, begin):
    """The hazard of the gap since the last event, or the begin."""
    gap = t - (history[-1][0] if history else begin)
    if process.resolution is not None:
        gap = max(gap, process.resolution)
    density = survival = 0.0
    for weight, mean, deviation in zip(
        process.weights, process.means, process.deviations, strict=True
    ):
        if gap == 0:
            survival += weight
            continue
        z = (math.log(gap) - mean) / deviation
        density += weight * math.exp(-z * z / 2) / (gap * deviation * math.sqrt(2 * math.pi))
        survival += weight * math.erfc(z / math.sqrt(2)) / 2
    return density / survival * process.type_probabilities


def hawkes_rates(process, t, history, begin):
    rates = np.array(process.base)
    for s, event_type in history:
        for other in range(len(rates)):
            kernel = process.decay * math.exp(-process.decay * (t - s))
            rates[other] += process.excitation[other, event_type] * kernel
    return rates


def independent_rates(process, t, history, begin):
    untyped = [(s, 0) for s, _ in history]
    total = RATES[type(process.process)](process.process, t, untyped, begin).sum()
    return total * process.type_probabilities


RATES = {
    PoissonProcess: poisson_rates,
    SinePoisson: sine_rates,
    RenewalProcess: renewal_rates,
    HawkesProcess: hawkes_rates,
    IndependentEventTypes: independent_rates,
}


def log_likelihood(process, events):
    """Sums of time, event type and survival of each sequence [N, 3], and the integrals by gap."""
    rates = RATES[type(process)]
    sums, integrals = [], []
    for times, types, begin, end, given in zip(
        events.times, events.event_types, events.begins, events.ends, events.num_given, strict=True
    ):
        history, before, time, event_type, own = [], begin, 0.0, 0.0, []

        def total(t, history=history, begin=begin):
            return rates(process, t, history, begin).sum()

        for index, (t, name) in enumerate(zip(times.tolist(), types.tolist(), strict=True)):
            if index >= given:
                now = rates(process, t, history, begin)
                own.append(quad(total, before, t))
                time += math.log(now.sum()) - own[-1]
                event_type += math.log(now[name] / now.sum())
            history.append((t, name))
            before = t
        sums.append([time, event_type, -quad(total, before, end)])
        integrals.append(own)
    return np.array(sums), integrals


def quad(function, a, b):
    return integrate.quad(function, a, b, epsabs=1e-12, epsrel=1e-11, limit=500)[0]
