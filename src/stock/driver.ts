import type { Order } from '../../db/Order'
import type { WriteEvent } from '../log'
import type { Next } from './steps'

export type DriverOptions = {
  find(id: string): Promise<Order | undefined>
  /** Takes the next step of an order. */
  step(order: Order): Promise<Next>
  /** Whether this process takes steps: it has the desk's account. */
  isOurs(): boolean
  /** Ids of orders that need a step. */
  toDrive(): Promise<readonly string[]>
  /** First wait (ms) before a step is tried again; doubles up to thirty times that. */
  laterMs: number
  /** Ms between two searches for orders that are not driven. */
  sweepMs: number
  log: WriteEvent
}

export type Driver = {
  /** Drives an order now. Safe at any time; before `start` the id is stored. */
  drive(id: string): void
  /** Drives these ids and the stored ones, and from now on orders that are not driven. */
  start(ids: readonly string[]): void
  /** Starts nothing new; resolves when no step runs. */
  stop(): Promise<void>
}

type State = {
  options: DriverOptions
  running: Map<string, Promise<void>>
  /** Orders that changed while they run. */
  changed: Set<string>
  /** Ids of calls before `start`. */
  queued: Set<string>
  timers: Map<string, { timer: ReturnType<typeof setTimeout>; delayMs: number }>
  sweeping: ReturnType<typeof setInterval> | undefined
  /** The running search for orders. */
  sweep: Promise<void> | undefined
  isStarted: boolean
  isStopping: boolean
}

/** More steps than any order needs at once: a looping order must not stop the others. */
const stepsMax = 20

/** Drives orders to their ends, each with one step at a time. */
export function createDriver(options: DriverOptions): Driver {
  const state: State = {
    options,
    running: new Map(),
    changed: new Set(),
    queued: new Set(),
    timers: new Map(),
    sweeping: undefined,
    sweep: undefined,
    isStarted: false,
    isStopping: false,
  }
  return {
    drive: (id) => drive(state, id),
    start(ids) {
      if (state.isStopping) return
      state.isStarted = true
      for (const id of new Set([...state.queued, ...ids])) drive(state, id)
      sweep(state)
      state.sweeping ??= setInterval(() => sweep(state), options.sweepMs)
    },
    async stop() {
      state.isStopping = true
      clearInterval(state.sweeping)
      for (const { timer } of state.timers.values()) clearTimeout(timer)
      state.timers.clear()
      await Promise.all([state.sweep, ...state.running.values()])
    },
  }
}

function drive(state: State, id: string): void {
  const { running, changed, timers } = state
  if (state.isStopping) return
  if (!state.isStarted) {
    state.queued.add(id)
    return
  }
  if (running.has(id)) {
    // The running step may have read the order before the change.
    changed.add(id)
    return
  }
  const scheduled = timers.get(id)
  clearTimeout(scheduled?.timer)
  timers.delete(id)
  const work = run(state, id, scheduled?.delayMs ?? 0).finally(() => {
    running.delete(id)
    if (changed.delete(id)) drive(state, id)
  })
  running.set(id, work)
}

/** Takes steps until there is nothing to do now. Never rejects. */
async function run(state: State, id: string, delayMs: number): Promise<void> {
  const { find, step, isOurs, log } = state.options
  let last: Order['state'] | undefined
  try {
    for (let steps = 0; steps < stepsMax; steps++) {
      const order = await find(id)
      if (order === undefined || state.isStopping || !isOurs()) return
      const next = await step(order)
      if (next === 'wait') return
      if (next === 'later') return later(state, id, last === undefined ? delayMs : 0)
      last = order.state
    }
    later(state, id, delayMs)
  } catch (error) {
    if (state.isStopping) return
    log('order-fault', { order: id, error })
    later(state, id, delayMs)
  }
}

function later(state: State, id: string, delayMs: number): void {
  if (state.isStopping) return
  const { laterMs } = state.options
  const next = Math.min(Math.max(laterMs, delayMs * 2), laterMs * 30)
  state.timers.set(id, { timer: setTimeout(() => drive(state, id), next), delayMs: next })
}

/**
 * Drives orders that are not driven. One search at a time: a ledger may answer after the next one
 * is due.
 */
function sweep(state: State): void {
  state.sweep ??= sweepOnce(state).finally(() => {
    state.sweep = undefined
  })
}

/** Never rejects. */
async function sweepOnce(state: State): Promise<void> {
  const { running, timers, options } = state
  try {
    for (const id of await options.toDrive()) {
      if (!running.has(id) && !timers.has(id)) drive(state, id)
    }
  } catch (error) {
    if (!state.isStopping) options.log('order-fault', { error })
  }
}
