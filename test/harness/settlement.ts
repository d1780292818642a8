import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Address, Hex } from 'viem'
import type { Ledger } from '../../db/Ledger'
import type { Purpose } from '../../db/Payment'
import type { Db } from '../../db/sqlite/open'
import type { NetworkConfig } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import { type Chain, mine, prepareChain } from '../../src/demo/chains'
import type { TransferMethod } from '../../src/protocol/Asset'
import * as Crypto from '../../src/protocol/Crypto'
import * as Transfer from '../../src/protocol/Transfer'
import type { Job } from '../../src/settlement/send/Job'
import { createSettlement, type Settlement } from '../../src/settlement/settlement'
import type { Meter } from '../../src/settlement/state/metrics'
import type { CreditLimits } from '../../src/settlement/upto/credit'
import { type ChainOptions, startChain } from './chains'
import { leaseChain, returnChain } from './lease'
import type { Sql } from './sql'
import { createTestLedger, dropDatabaseOf } from './test-ledger'

/** Behaviour of USDG (a used nonce only emits a log) or USDC (it reverts). */
export function networkOf(
  url: string,
  manners: 'usdg' | 'usdc' = 'usdg',
  changes: Partial<NetworkConfig> = {},
): NetworkConfig {
  const chainId = manners === 'usdg' ? 4663 : 8453
  return {
    id: `eip155:${chainId}`,
    chainId,
    name: 'local',
    testnet: false,
    asset: {
      symbol: manners.toUpperCase(),
      address:
        manners === 'usdg'
          ? '0x5fc5360D0400a0Fd4f2af552ADD042D716F1d168'
          : '0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913',
      decimals: 6,
      transfer: ['permit2', 'eip3009'],
      eip712: {
        name: manners === 'usdg' ? 'Global Dollar' : 'USD Coin',
        version: manners === 'usdg' ? '1' : '2',
      },
      revertsOnUsedNonce: manners === 'usdc',
      eip2612: true,
    },
    rpcUrls: [url],
    wsUrl: '',
    confirmations: 1,
    reorgDepth: 16,
    batchMax: 64,
    batchGasMax: 12_000_000,
    feeCapWei: 50_000_000_000n,
    // On a busy machine a test that counts transactions takes longer than the usual 20.
    replaceAfterSeconds: 600,
    gasRatioMax: 0,
    ethPriceUsd: 4000,
    gasPerDayWei: {
      gateway: 10n ** 18n,
      facilitator: 10n ** 18n,
      desk: 10n ** 18n,
      sponsor: 0n,
      channels: 10n ** 18n,
    },
    sponsor: undefined,
    channels: undefined,
    ...changes,
  }
}

export const payee: Address = account(7).address
export const relayerKey = Crypto.bytes(account(0).privateKey)

let serial = 0

/** A transfer signed by a demo account (or by `key` for another payer). */
export function signTransfer(
  network: NetworkConfig,
  options: {
    method?: TransferMethod
    from?: number
    payer?: Address
    amountAtomic?: bigint
    payee?: Address
    nonce?: Hex
    validAfter?: bigint
    validBefore?: bigint
  } = {},
): Transfer.Transfer {
  const signer = account(options.from ?? 1)
  const transfer: Omit<Transfer.Transfer, 'signature'> = {
    method: options.method ?? 'eip3009',
    network: network.id,
    chainId: network.chainId,
    asset: network.asset.address,
    payer: options.payer ?? signer.address,
    payee: options.payee ?? payee,
    amountAtomic: options.amountAtomic ?? 5_000n,
    nonce: options.nonce ?? Crypto.hex(Crypto.keccak256(`nonce ${++serial}`)),
    validAfter: options.validAfter ?? 0n,
    validBefore: options.validBefore ?? BigInt(Math.floor(Date.now() / 1000) + 300),
  }
  const digest = Transfer.digest(transfer, network.asset)
  return { ...transfer, signature: Crypto.sign(digest, Crypto.bytes(signer.privateKey)) }
}

/** Whether the payer's own key signed, as callers of settlement report it. */
function isSigned(transfer: Transfer.Transfer): boolean {
  const { asset } = networkOf('', transfer.chainId === 4663 ? 'usdg' : 'usdc')
  return Crypto.recover(Transfer.digest(transfer, asset), transfer.signature) === transfer.payer
}

export function purposeOf(changes: Partial<Purpose> = {}): Purpose {
  return {
    product: 'gateway',
    protocol: 'x402',
    merchant: 'weather',
    route: '/forecast',
    fingerprint: 'f'.repeat(64),
    resource: 'http://localhost/m/weather/forecast',
    idempotencyKey: undefined,
    challengeId: undefined,
    ...(changes.protocol !== 'mpp' && { credentialHash: 'c'.repeat(64) }),
    bound: false,
    ...changes,
  }
}

/** A job that sends account 8 seven wei, which can be counted. */
export function jobOf({ id: network }: NetworkConfig, changes: Partial<Job> = {}): Job {
  return {
    id: 'refund:1',
    kind: 'refund',
    product: 'desk',
    network,
    relayer: undefined,
    to: account(8).address,
    data: '0x',
    valueWei: 7n,
    gasLimit: 100_000n,
    ...changes,
  }
}

export type SettlementFixture = {
  sql: Sql
  /** SQLite's own connection. */
  readonly db: Db
  ledger: Ledger
  settlement: Settlement
  events: { event: string; fields: Readonly<Record<string, unknown>> | undefined }[]
  /** Settles with the usual options. */
  pay(
    transfer: Transfer.Transfer,
    changes?: Partial<Purpose>,
    options?: { waitMs?: number; receivedAt?: number },
  ): ReturnType<Settlement['settle']>
  /** Ends it without waiting for work in progress, as a crash would. */
  crash(): Promise<void>
  stop(): Promise<void>
}

type FixtureOptions = {
  now?: () => number
  recover?: boolean
  checkMs?: number
  blockTimeMs?: number
  jobProofMs?: number
  resendMs?: number
  chargeAttemptMs?: number
  meter?: Meter
  relayerKeys?: readonly Uint8Array[]
  deskKey?: Uint8Array
  walletFactories?: readonly Address[]
  payoutExclusive?: boolean
  isOwnPayee?: (payee: Address) => boolean
  receiverAuthorizerKey?: Uint8Array
  creditOf?: () => CreditLimits
  /** Undefined: the limit of the service; without it there is no limit. */
  clockSkewMaxMs?: number | undefined
}

/** A meter that counts nothing. */
export const silent: Meter = {
  counter: () => ({ inc() {} }),
  gauge: () => ({ set() {} }),
  histogram: () => ({ observe() {} }),
  onRender() {},
}

/** Starts settlement over a data directory. */
export async function startFixture(
  networks: readonly NetworkConfig[],
  dataDir: string,
  options: FixtureOptions = {},
): Promise<SettlementFixture> {
  const now = options.now ?? Date.now
  const store = await createTestLedger({ dataDir, now })
  const { ledger } = await store.open()
  const events: SettlementFixture['events'] = []
  const settlement = await createSettlement({
    ledger,
    meter: options.meter ?? silent,
    networks,
    relayerKeys: options.relayerKeys ?? [relayerKey],
    now,
    log: (event, fields) => void events.push({ event, fields }),
    checkMs: options.checkMs ?? 200,
    // Local blocks are mined on demand, so short polling intervals find them soon.
    blockTimeMs: options.blockTimeMs ?? 100,
    // On a busy machine many chains answer late.
    rpcTimeoutMs: 60_000,
    deskKey: options.deskKey,
    monotonic: () => performance.now(),
    // Tests move one clock without the others.
    clockSkewMaxMs: 'clockSkewMaxMs' in options ? options.clockSkewMaxMs : Number.POSITIVE_INFINITY,
    payoutExclusive: () => options.payoutExclusive === true,
    isOwnPayee: options.isOwnPayee,
    receiverAuthorizerKey: options.receiverAuthorizerKey,
    creditOf: options.creditOf,
    jobProofMs: options.jobProofMs,
    resendMs: options.resendMs,
    chargeAttemptMs: options.chargeAttemptMs,
    ...(options.walletFactories ? { walletFactories: options.walletFactories } : {}),
  })
  if (options.recover === false) await settlement.ready
  else await settlement.recover()
  const end = async (limitMs: number) => {
    await settlement.stop(limitMs)
    await store.close()
  }
  return {
    sql: store.sql,
    get db() {
      return store.db
    },
    ledger,
    settlement,
    events,
    pay: (transfer, changes, { waitMs = 120_000, receivedAt = now() } = {}) =>
      settlement.settle(
        {
          transfer,
          purpose: purposeOf(changes),
          receivedAt,
          isKeySigned: () => isSigned(transfer),
        },
        waitMs,
      ),
    crash: () => end(0),
    stop: () => end(1_000),
  }
}

/** A directory that is removed by `remove`. */
export function temporary(): { path: string; remove(): void } {
  const path = mkdtempSync(join(tmpdir(), 'turnpike-test-'))
  const remove = () => {
    void dropDatabaseOf(path)
    rmSync(path, { recursive: true, force: true })
  }
  return { path, remove }
}

export type RpcCall = { method: string; params: readonly unknown[] }

/**
 * A proxy between settlement and a node. `intercept` may answer itself, or forward and then change
 * the answer; undefined forwards.
 */
export function startTap(url: string): {
  url: string
  calls: RpcCall[]
  /** Those of them that were answered. */
  answered: RpcCall[]
  intercept: ((call: RpcCall, forward: () => Promise<Response>) => unknown) | undefined
  stop(): void
} {
  const calls: RpcCall[] = []
  const answered: RpcCall[] = []
  const server = Bun.serve({
    port: 0,
    hostname: '127.0.0.1',
    idleTimeout: 255,
    async fetch(request) {
      const body = (await request.json()) as RpcCall & { id: number }
      calls.push({ method: body.method, params: body.params })
      const forward = () =>
        fetch(url, {
          method: 'POST',
          headers: { 'content-type': 'application/json' },
          body: JSON.stringify(body),
        })
      const reply = async () => {
        const answer = await tap.intercept?.(body, forward)
        if (answer instanceof Response) return answer
        if (answer !== undefined) return Response.json({ jsonrpc: '2.0', id: body.id, ...answer })
        try {
          const response = await forward()
          return new Response(await response.arrayBuffer(), { status: response.status })
        } catch {
          return new Response('the node is gone', { status: 502 })
        }
      }
      const response = await reply()
      answered.push({ method: body.method, params: body.params })
      return response
    },
  })
  const tap: ReturnType<typeof startTap> = {
    url: `http://127.0.0.1:${server.port}`,
    calls,
    answered,
    intercept: undefined,
    stop: () => void server.stop(true),
  }
  return tap
}

/** A prepared chain of the network, and a tap before it. */
export async function startNetwork(
  manners: 'usdg' | 'usdc' = 'usdg',
  options: Omit<ChainOptions, 'chainId' | 'port'> = {},
): Promise<{ chain: Chain; tap: ReturnType<typeof startTap>; stop(): Promise<void> }> {
  const network = networkOf('http://localhost', manners)
  const { blockTimeMs, extraArgs, ...lease } = options
  const isLent = blockTimeMs === undefined && extraArgs === undefined
  const chain = isLent
    ? await leaseChain(network, lease)
    : await startChain({ chainId: network.chainId, ...options })
  if (!isLent) await prepareChain(chain, network)
  const tap = startTap(chain.url)
  return {
    chain,
    tap,
    async stop() {
      tap.stop()
      await returnChain(chain)
    },
  }
}

/**
 * Waits until the condition is true; throws after two minutes. Most of the time is a pause, also
 * where a look connects to a server.
 */
export async function until(condition: () => boolean | Promise<boolean>): Promise<void> {
  const deadline = performance.now() + 120_000
  while (performance.now() < deadline) {
    const startedAt = performance.now()
    if (await condition()) return
    await Bun.sleep(Math.min(25, Math.max(5, 4 * (performance.now() - startedAt))))
  }
  throw new Error('the condition was not met')
}

/** Mines block after block until the work is done. */
export async function mineWhile<T>(chain: Chain, work: Promise<T>): Promise<T> {
  let isOver = false
  const over = () => {
    isOver = true
  }
  work.then(over, over)
  await until(async () => {
    await mine(chain)
    return isOver
  })
  return work
}

/** Waits until a node has the bytes of a transaction. */
export function untilKnown(chain: Chain, hash: Hex): Promise<void> {
  return until(async () => (await chain.rpc('eth_getTransactionByHash', [hash])) !== null)
}
