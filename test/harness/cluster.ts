import type { Times } from '../../db/postgres/gateways'
import type { Lines } from '../../db/postgres/line-pool'
import { account } from '../../src/demo/accounts'
import * as Crypto from '../../src/protocol/Crypto'
import type { Settlement, SettlementOptions } from '../../src/settlement/settlement'
import { startGateway, type TestGateway } from './gateway-pair'
import { gatewayDatabase } from './postgres'
import { type Scripted, scripted } from './scripted'
import { purposeOf, relayerKey, until } from './settlement'

/** Keys of relayers, the first of them that of every scripted settlement. */
export const relayerKeys = [relayerKey, Crypto.bytes(account(5).privateKey)] as const

export type Process = TestGateway & { settlement: Settlement }

type Starting = Partial<SettlementOptions> & {
  /** What stands between the gateway and its connections. */
  lines?: (lines: Lines) => Lines
  times?: Partial<Times>
}

/** Processes over one database and one chain, each with its own settings. */
export async function cluster(database?: string) {
  const chain = await scripted()
  const url = database ?? (await gatewayDatabase())
  const all: Process[] = []
  return {
    chain,
    async start({ lines, times, ...more }: Starting = {}): Promise<Process> {
      const gateway = await startGateway(url, {
        now: () => chain.clock.ms,
        ...(lines && { lines }),
        ...(times && { times }),
      })
      const settlement = await chain.start({ ledger: gateway.ledger, ...more })
      await settlement.recover()
      const process = { ...gateway, settlement }
      all.push(process)
      return process
    },
    /** Ends a process as a stop does. */
    async leave(process: Process) {
      await process.settlement.stop(0)
      await process.leave()
    },
    async [Symbol.asyncDispose]() {
      for (const process of all) {
        await process.settlement.stop(0)
        await process.leave()
      }
      await chain[Symbol.asyncDispose]()
    },
  }
}

export const payAt = (
  { settlement }: Process,
  { clock }: Scripted,
  transfer: ReturnType<Scripted['sign']>,
) =>
  settlement.settle(
    { transfer, purpose: purposeOf(), receivedAt: clock.ms, isKeySigned: () => true },
    20_000,
  )

/** Pays without waiting for the end, and continues when the bytes were sent. */
export async function beginAt(
  process: Process,
  chain: Scripted,
  transfer: ReturnType<Scripted['sign']>,
) {
  payAt(process, chain, transfer).catch(() => undefined)
  await until(async () => {
    const written = await process.settlement.find(transfer)
    return chain.node.sends.some(({ hash }) => hash === written?.transaction)
  })
}

export const sellsAt = ({ settlement }: Process, { network }: Scripted) =>
  settlement.isReady(network.id)
