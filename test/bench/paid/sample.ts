import { join } from 'node:path'
import type { Chain } from '../../../src/demo/chains'
import { startChains } from '../../harness/chains'
import type { Machine, Server } from '../machine'
import type { Candidate, Load } from './candidates'
import { newDatabase } from './database'
import { pay, type Run, type Target } from './load'
import { type Model, modelPath, modelRequest, startModel } from './model'
import { network } from './network'
import { approve, type Credential, credentials, mint, payers } from './payers'

export type Sample = Run & {
  /** CPU milliseconds of the server per paid request. */
  cpuMs: number
}

/** A chain and a server on it, with credentials signed for it. */
export type Stage = {
  chain: Chain
  server: Server
  warmUp: readonly Credential[][]
  measured: readonly Credential[][]
  /** Undefined: the joke of every candidate. */
  target: Target | undefined
  /** The upstream of candidates by `upto`. */
  model: Model | undefined
}

/** Called when the load has been paid, while everything still runs. */
export type Inspect = (stage: Stage) => Promise<void>

/** Everything is new: chain, server, credentials. The first payments of each payer do not count. */
export async function sample(
  machine: Machine,
  candidate: Candidate,
  load: Load,
  inspect?: Inspect,
): Promise<Sample> {
  return withStage(machine, { candidate, load }, async (stage) => {
    const taken = await sampleOn(machine, stage)
    await inspect?.(stage)
    return taken
  })
}

/** Pays the prepared credentials. */
export async function sampleOn(
  machine: Machine,
  { server, warmUp, measured, target }: Stage,
): Promise<Sample> {
  await pay(server.url, warmUp, target)
  const before = machine.cpuSeconds(server.pid)
  const run = await pay(server.url, measured, target)
  const cpuMs = ((machine.cpuSeconds(server.pid) - before) * 1000) / Math.max(1, run.paid)
  return { ...run, cpuMs }
}

export type Setting = {
  candidate: Candidate
  load: Load
  /** Prepares the chain, and can put a proxy between the server and it. */
  rpcOf?: (chain: Chain) => string | Promise<string>
  /** Starts the upstream of candidates by `upto`; by default in this process. */
  modelOf?: () => Model | Promise<Model>
  /** Further arguments of the server. */
  args?: readonly string[]
}

/** Prepares a sample for `use`, and ends it. */
export async function withStage<T>(
  machine: Machine,
  { candidate, load, rpcOf = ({ url }) => url, modelOf = startModel, args: more = [] }: Setting,
  use: (stage: Stage) => Promise<T>,
): Promise<T> {
  const { protocol, script, args, kind } = candidate
  const [chain] = await startChains(
    [network()],
    load.blockTimeMs === undefined ? {} : { blockTimeMs: load.blockTimeMs },
  )
  if (chain === undefined) throw new Error('no chain')
  const model = protocol === 'upto' ? await modelOf() : undefined
  try {
    const holders = payers(load.payers)
    await mint(chain, network(), holders)
    if (model !== undefined) await approve(chain, network(), holders)
    const server = await machine.serve(join('..', 'paid', 'servers', script), [
      await rpcOf(chain),
      ...(kind === 'postgres' ? [await newDatabase()] : []),
      ...(model === undefined ? [] : [model.url]),
      ...args,
      ...more,
    ])
    try {
      const isShipped = kind === 'shipped'
      const warmUp = isShipped ? load.warmUpShipped : load.warmUp
      const each = isShipped ? load.eachShipped : load.each
      const lists = await credentials(
        { url: server.url, protocol, network: network() },
        holders,
        warmUp + each,
      )
      return await use({
        chain,
        server,
        warmUp: lists.map((list) => list.slice(0, warmUp)),
        measured: lists.map((list) => list.slice(warmUp)),
        target: model && { path: modelPath, init: modelRequest },
        model,
      })
    } finally {
      await end(server)
    }
  } finally {
    await model?.stop()
    await chain.stop()
  }
}

/** Lets a profiled server write its profile. */
async function end(server: Server): Promise<void> {
  if (process.env.BUN_OPTIONS?.includes('prof')) {
    process.kill(server.pid, 'SIGTERM')
    const deadline = performance.now() + 10_000
    while (isRunning(server.pid) && performance.now() < deadline) await Bun.sleep(20)
  }
  await server.stop()
}

function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch {
    return false
  }
}
