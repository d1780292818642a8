import type { Address } from 'viem'
import type { Ledger } from '../../db/Ledger'
import type { Payment, Purpose } from '../../db/Payment'
import type { NetworkConfig } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import type { Transfer } from '../../src/protocol/Transfer'
import {
  createSettlement,
  type Settlement,
  type SettlementOptions,
} from '../../src/settlement/settlement'
import { createScriptedChain, startSeconds } from './scripted-chain'
import { startScriptedNode } from './scripted-node'
import { networkOf, purposeOf, relayerKey, signTransfer, silent, until } from './settlement'
import { createTestLedger, type OpenedLedger } from './test-ledger'

type Changes = {
  network?: Partial<NetworkConfig>
  settlement?: Partial<SettlementOptions>
  /** Nodes over the one chain. */
  nodes?: number
  /** What stands between the settlement and its ledger. */
  ledger?: (ledger: Ledger) => Ledger
}
type Row = { hash: string; nonce: number; kind: string; state: string; maxFeeWei: bigint }

/** The relayer of every scripted settlement. */
export const relayer: Address = account(0).address

/** The parts of a settlement, and functions to start it. */
async function prepare(changes: Changes) {
  const plain = networkOf('http://127.0.0.1', 'usdc', { replaceAfterSeconds: 3_600 })
  const chain = createScriptedChain(plain.asset.address)
  const nodes = Array.from({ length: changes.nodes ?? 1 }, () => startScriptedNode(chain, plain))
  const [node, second = node] = nodes
  if (!node || !second) throw new Error('a settlement needs a node')
  const network = { ...plain, rpcUrls: nodes.map(({ url }) => url), ...changes.network }
  const clock = { ms: startSeconds * 1_000 }
  const now = () => clock.ms
  const store = await createTestLedger({ now })
  const events: { event: string; fields: Readonly<Record<string, unknown>> | undefined }[] = []
  const start = async (more: Partial<SettlementOptions> = {}): Promise<Started> => {
    const opened = await store.open()
    const settlement = await createSettlement({
      ledger: changes.ledger?.(opened.ledger) ?? opened.ledger,
      meter: silent,
      networks: [network],
      relayerKeys: [relayerKey],
      now,
      log: (event, fields) => void events.push({ event, fields }),
      checkMs: 3_600_000,
      // Polls run as fast as possible.
      blockTimeMs: 1,
      // A call that a busy machine delays must not pause the network: nothing checks it again.
      rpcTimeoutMs: 60_000,
      // Only tests that request it send bytes again that a node accepted.
      resendMs: 3_600_000,
      jobProofMs: 0,
      clockSkewMaxMs: Number.POSITIVE_INFINITY,
      ...changes.settlement,
      ...more,
    })
    return Object.assign(settlement, { leave: opened.close })
  }
  const { sql } = store
  return { chain, nodes, node, second, network, clock, store, sql, events, start }
}

/** A settlement, and the end of its ledger. */
type Started = Settlement & { leave: OpenedLedger['close'] }
type Prepared = Awaited<ReturnType<typeof prepare>>

/** Actions of a buyer, and their results. */
function buyer({ network, clock, node }: Prepared, current: () => Settlement) {
  const own = {
    /** A transfer of a demo account, valid for five minutes by the scripted clock. */
    sign: (options: Parameters<typeof signTransfer>[1] = {}) =>
      signTransfer(network, {
        validBefore: BigInt(Math.floor(clock.ms / 1_000) + 300),
        ...options,
      }),
    pay: (transfer: Transfer, purpose: Partial<Purpose> = {}, waitMs = 120_000) =>
      current().settle(
        {
          transfer,
          purpose: purposeOf(purpose),
          receivedAt: clock.ms,
          isKeySigned: () => true,
        },
        waitMs,
      ),
    /** Pays without waiting for the end, and continues when the bytes were sent. */
    async begin(transfer: Transfer, purpose: Partial<Purpose> = {}): Promise<Payment> {
      let refused: string | undefined
      const paying = own.pay(transfer, purpose)
      paying.then(
        (end) => {
          if ('detail' in end) refused = end.detail
        },
        () => undefined,
      )
      await until(async () => {
        if (refused !== undefined) throw new Error(refused)
        const written = await current().find(transfer)
        return node.sends.some(({ hash }) => hash === written?.transaction)
      })
      return own.payment(transfer)
    },
    /** The payment as it is stored. */
    async payment(transfer: Transfer): Promise<Payment> {
      const payment = await current().find(transfer)
      if (!payment) throw new Error('the payment was not written')
      return payment
    },
    stateOf: async (transfer: Transfer) => (await own.payment(transfer)).state,
    reaches: (transfer: Transfer, state: Payment['state']) =>
      until(async () => (await own.stateOf(transfer)) === state),
  }
  return own
}

/** Rows, events and calls of the settlement. */
function observer({ sql, events, node, chain, network }: Prepared) {
  return {
    /** Adds empty blocks, until no reorganisation can remove the block that was the newest one. */
    bury() {
      for (let depth = 0; depth < network.reorgDepth; depth++) chain.mine([])
    },
    heard: (event: string) => events.filter((each) => each.event === event),
    rows: () =>
      sql
        .query<Omit<Row, 'maxFeeWei'> & { maxFeeWei: string }, []>(
          'SELECT hash, nonce, kind, state, max_fee_wei maxFeeWei FROM transactions ORDER BY nonce, rowid',
        )
        .all()
        .map((row): Row => ({ ...row, maxFeeWei: BigInt(row.maxFeeWei) })),
    /** Continues when two more health checks have ended. */
    async checked() {
      const checks = () => node.calls.filter(({ method }) => method === 'eth_chainId').length
      const before = checks()
      // The second check starts when the first has ended, the third when the second has.
      await until(() => checks() > before + 2)
    },
  }
}

/**
 * A settlement over a database in memory and a scripted chain. Polls run as often as settlement
 * allows, and the health check only at the start, unless `checkMs` is given.
 */
export async function scripted(changes: Changes = {}) {
  const prepared = await prepare(changes)
  const { start, store, nodes } = prepared
  let settlement = await start()
  await settlement.recover()
  return {
    ...prepared,
    ...buyer(prepared, () => settlement),
    ...observer(prepared),
    get settlement() {
      return settlement
    },
    /** SQLite's own connection. */
    get db() {
      return store.db
    },
    /** Ends the settlement as a crash would. */
    async crash() {
      await settlement.stop(0)
      await settlement.leave()
    },
    /** Starts a settlement over the stored data; returns when it has read everything once. */
    async restart(more: Partial<SettlementOptions> = {}) {
      await settlement.stop(0)
      await settlement.leave()
      settlement = await start(more)
      await settlement.recover()
    },
    async [Symbol.asyncDispose]() {
      await settlement.stop(0)
      await store.close()
      for (const each of nodes) each.stop()
    },
  }
}

export type Scripted = Awaited<ReturnType<typeof scripted>>
