import { afterEach, beforeEach, describe, expect, test } from 'bun:test'
import { encodeFunctionData, type Hex, parseAbi, parseTransaction } from 'viem'
import { createErrands } from '../db/errands'
import type { NetworkConfig } from '../src/config/Config'
import { account } from '../src/demo/accounts'
import { mine, setAutomine } from '../src/demo/chains'
import * as Crypto from '../src/protocol/Crypto'
import type { Errand, ErrandEnd } from '../src/settlement/Errand'
import {
  type Desk,
  errandOf,
  mineWhile,
  networkOf,
  signTransfer,
  startDesk,
  startNetwork,
  temporary,
  until,
  untilKnown,
} from './harness/settlement'

let net: Awaited<ReturnType<typeof startNetwork>>
let network: NetworkConfig
let directory: ReturnType<typeof temporary>
let desk: Desk

const receiver = account(8).address
const isSend = (method: string) => method.startsWith('eth_sendRawTransaction')
const lost = ({ method }: { method: string }) =>
  isSend(method) ? new Response('lost', { status: 503 }) : undefined
/** A node without eth_sendRawTransactionSync. */
const withoutSync = ({ method }: { method: string }) =>
  method === 'eth_sendRawTransactionSync'
    ? { error: { code: -32601, message: 'the method does not exist' } }
    : undefined

beforeEach(async () => {
  net = await startNetwork()
  network = networkOf(net.tap.url)
  directory = temporary()
  await open()
  before = await received()
})

afterEach(async () => {
  await desk.stop()
  await net.stop()
  directory.remove()
})

let before = 0n
let told: string[] = []

async function open(
  changes: Partial<NetworkConfig> = {},
  options: Parameters<typeof startDesk>[2] = {},
): Promise<void> {
  desk = await startDesk([{ ...network, ...changes }], directory.path, options)
  told = []
  desk.settlement.onErrand((id) => told.push(`${id} ${desk.settlement.errand(id)?.state}`))
}

async function reopen(
  changes: Partial<NetworkConfig> = {},
  options: Parameters<typeof startDesk>[2] = {},
): Promise<void> {
  await desk.crash()
  await open(changes, options)
}

const run = (changes: Partial<Errand> = {}, waitMs = 10_000) =>
  desk.settlement.run(errandOf(network, changes), { waitMs })
const stateOf = (id = 'refund:1') => desk.settlement.errand(id)?.state
const received = async () =>
  BigInt((await net.chain.rpc('eth_getBalance', [receiver, 'latest'])) as string)
const moved = async () => (await received()) - before

function transactions() {
  return desk.db.sqlite
    .query<
      { nonce: number; state: string; kind: string; hash: Hex; raw: Hex; relayer: string },
      []
    >('SELECT * FROM transactions ORDER BY nonce, created_at, rowid')
    .all()
}

/** A transaction of another program with the relayer's key, at a nonce of ours. */
const sendForeign = (nonce: number) =>
  net.chain.rpc('eth_sendTransaction', [
    {
      from: account(0).address,
      to: account(0).address,
      nonce: `0x${nonce.toString(16)}`,
      gas: '0x5208',
      maxFeePerGas: '0x174876e800',
      maxPriorityFeePerGas: '0x174876e800',
    },
  ])

/** Makes a transaction look as if the process had ended before its first send. */
function unsend(): void {
  desk.db.sqlite.run(
    "UPDATE transactions SET state = 'signed', first_sent_at = NULL WHERE state = 'sent' AND kind <> 'payment'",
  )
}

describe('an errand', () => {
  test('behavior: is written before its bytes leave, with what its owner writes', async () => {
    desk.db.sqlite.run('CREATE TABLE noted (hash TEXT)')
    let onDisk: unknown
    net.tap.intercept = ({ method }) => {
      if (isSend(method)) onDisk ??= [transactions(), desk.settlement.errand('refund:1')]
      return undefined
    }
    const end = await desk.settlement.run(errandOf(network), {
      waitMs: 10_000,
      write: (hash) => desk.db.sqlite.run('INSERT INTO noted VALUES (?)', [hash]),
    })
    if (end.kind !== 'confirmed') throw new Error(end.kind)
    expect(end.receipt).toMatchObject({ hash: end.transaction, success: true, logs: [] })
    expect(onDisk).toMatchObject([
      [{ state: 'sent', kind: 'refund', hash: end.transaction }],
      { state: 'broadcast', transaction: end.transaction, blockNumber: undefined },
    ])
    expect(desk.db.sqlite.query('SELECT hash FROM noted').all()).toEqual([
      { hash: end.transaction },
    ])
    expect(desk.settlement.errand('refund:1')).toEqual({
      state: 'confirmed',
      transaction: end.transaction,
      blockNumber: end.receipt.blockNumber,
    })
    expect(told).toEqual(['refund:1 confirmed'])
    expect(await moved()).toBe(7n)
  })

  test('error: what its owner cannot write is neither written nor sent, and may come again', async () => {
    const write = () => {
      throw new Error('the order is gone')
    }
    const running = desk.settlement.run(errandOf(network), { waitMs: 10_000, write })
    expect(running).rejects.toThrow('the order is gone')
    await running.catch(() => undefined)
    expect(transactions()).toEqual([])
    expect(desk.settlement.errand('refund:1')).toBeUndefined()
    expect((await run()).kind).toBe('confirmed')
    expect(await moved()).toBe(7n)
  })

  test('behavior: many at once under one id are one transaction', async () => {
    let writes = 0
    const ends = await Promise.all(
      Array.from({ length: 20 }, () =>
        desk.settlement.run(errandOf(network), { waitMs: 10_000, write: () => void writes++ }),
      ),
    )
    expect(new Set(ends.map((end) => 'transaction' in end && end.transaction)).size).toBe(1)
    expect(ends.every(({ kind }) => kind === 'confirmed')).toBe(true)
    expect(writes).toBe(1)
    expect(transactions()).toHaveLength(1)
    expect(await moved()).toBe(7n)
  })

  test('behavior: its end is answered from the database, after a restart too', async () => {
    const end = await run()
    await reopen()
    net.tap.calls.length = 0
    expect(await run()).toEqual(end)
    expect(net.tap.calls.filter(({ method }) => isSend(method))).toEqual([])
    expect(await moved()).toBe(7n)
  })

  test('error: that the chain refuses has failed, with its receipt', async () => {
    const abi = parseAbi(['function transfer(address to, uint256 value)'])
    const data = encodeFunctionData({ abi, args: [receiver, 10n ** 30n] })
    const swap = {
      id: 'swap:1',
      kind: 'swap',
      to: network.asset.address,
      data,
      valueWei: 0n,
    } as const
    const end = await run(swap)
    expect(end).toMatchObject({ kind: 'failed', receipt: { success: false } })
    expect(await run(swap)).toEqual(end)
    expect(told).toEqual(['swap:1 failed'])
    expect(transactions()).toMatchObject([{ state: 'failed', kind: 'swap' }])
  })

  test('behavior: that is not decided in time is pending and goes on', async () => {
    await setAutomine(net.chain, false)
    const end = await run({}, 50)
    expect(end.kind).toBe('pending')
    expect(await mineWhile(net.chain, run())).toMatchObject({
      kind: 'confirmed',
      transaction: end.kind === 'pending' ? end.transaction : '0x',
    })
    expect(await moved()).toBe(7n)
  })

  test('behavior: waits for the configured confirmations', async () => {
    await reopen({ confirmations: 3 })
    expect((await run({}, 100)).kind).toBe('pending')
    await mineUntil('refund:1')
  })

  test('behavior: never shares a transaction with payments', async () => {
    await setAutomine(net.chain, false)
    const paying = [1, 2, 3].flatMap(() => [
      desk.pay(signTransfer(network)),
      desk.pay(signTransfer(network, { from: 2 })),
    ])
    const ids = ['refund:1', 'refund:2', 'refund:3']
    const running = ids.map((id) => run({ id }))
    await until(() => transactions().length >= 4)
    const outcomes = await mineWhile(net.chain, Promise.all(paying))
    const ends = await mineWhile(net.chain, Promise.all(running))
    expect([...outcomes, ...ends].every(({ kind }) => kind === 'confirmed')).toBe(true)
    const refunds = transactions().filter(({ kind }) => kind === 'refund')
    expect(refunds).toHaveLength(3)
    for (const { raw } of refunds)
      expect(parseTransaction(raw as `0x02${string}`)).toMatchObject({
        to: receiver.toLowerCase(),
        value: 7n,
      })
    expect(await moved()).toBe(21n)
  })
})

describe('a stuck errand', () => {
  test('behavior: goes out with higher fees at its nonce, and runs once', async () => {
    net.tap.intercept = withoutSync
    await setAutomine(net.chain, false)
    await reopen({ replaceAfterSeconds: 0.2 })
    const running = run()
    await until(() => transactions().length > 1)
    expect(desk.settlement.errand('refund:1')?.transaction).toBe(
      transactions().at(-1)?.hash ?? '0x',
    )
    const end = await mineWhile(net.chain, running)
    const rows = transactions()
    expect(new Set(rows.map(({ nonce }) => nonce)).size).toBe(1)
    expect(rows.filter(({ state }) => state === 'mined').map(({ hash }) => hash)).toEqual([
      end.kind === 'confirmed' ? end.transaction : '0x',
    ])
    expect(rows.every(({ kind }) => kind === 'refund')).toBe(true)
    expect(told.at(-1)).toBe('refund:1 confirmed')
    expect(await moved()).toBe(7n)
  })

  test('behavior: is never given up, however late it is', async () => {
    net.tap.intercept = withoutSync
    await setAutomine(net.chain, false)
    let ahead = 0
    await reopen({ replaceAfterSeconds: 0.2 }, { now: () => Date.now() + ahead })
    expect((await run({}, 20)).kind).toBe('pending')
    ahead = 100 * 86_400_000
    await until(() => transactions().length > 2)
    expect(transactions().every(({ kind }) => kind === 'refund')).toBe(true)
    await mineUntil('refund:1')
    expect(await moved()).toBe(7n)
  })

  test('behavior: at the fee cap keeps its nonce and its bytes until it is included', async () => {
    net.tap.intercept = withoutSync
    await setAutomine(net.chain, false)
    await reopen({ replaceAfterSeconds: 0.2, feeCapWei: 1_200_000_000n })
    expect((await run({}, 20)).kind).toBe('pending')
    await until(() => desk.settlement.status()[0]?.reason?.includes('fee cap') === true)
    expect((await run({ id: 'refund:2' }, 20)).kind).toBe('unavailable')
    expect(desk.settlement.errand('refund:2')).toBeUndefined()
    await mineUntil('refund:1')
    expect((await mineWhile(net.chain, run({ id: 'refund:2' }))).kind).toBe('confirmed')
    expect(await moved()).toBe(14n)
  })
})

async function mineUntil(id: string): Promise<void> {
  await until(async () => {
    await mine(net.chain)
    return stateOf(id) === 'confirmed'
  })
}

describe('after a crash', () => {
  test('behavior: bytes that never arrived are sent, the same ones', async () => {
    net.tap.intercept = lost
    const end = await run({}, 50)
    if (end.kind !== 'pending') throw new Error(end.kind)
    net.tap.intercept = undefined
    await reopen()
    await until(() => stateOf() === 'confirmed')
    expect(transactions()).toMatchObject([{ hash: end.transaction, state: 'mined' }])
    expect(await run()).toMatchObject({ kind: 'confirmed', transaction: end.transaction })
    expect(await moved()).toBe(7n)
  })

  test('behavior: what was written and never sent is sent, not cancelled', async () => {
    net.tap.intercept = lost
    const end = await run({}, 20)
    if (end.kind !== 'pending') throw new Error(end.kind)
    await desk.crash()
    desk = await startDesk([network], directory.path, { recover: false })
    unsend()
    net.tap.intercept = undefined
    await reopen()
    await until(() => stateOf() === 'confirmed')
    expect(transactions()).toMatchObject([{ hash: end.transaction, state: 'mined' }])
    expect(await moved()).toBe(7n)
  })

  test('behavior: below payments, it keeps its nonce and they keep theirs', async () => {
    net.tap.intercept = lost
    expect((await run({}, 20)).kind).toBe('pending')
    const transfer = signTransfer(network)
    expect((await desk.pay(transfer, {}, { waitMs: 20 })).kind).toBe('pending')
    expect((await run({ id: 'refund:2' }, 20)).kind).toBe('pending')
    unsend()
    net.tap.intercept = undefined
    await reopen()
    await until(() => desk.settlement.find(transfer)?.state === 'confirmed')
    await until(() => stateOf() === 'confirmed' && stateOf('refund:2') === 'confirmed')
    expect(transactions()).toMatchObject([
      { kind: 'refund', state: 'mined' },
      { kind: 'payment', state: 'mined' },
      { kind: 'refund', state: 'mined' },
    ])
    expect(await moved()).toBe(14n)
  })

  test('behavior: what was included meanwhile is found, whichever of its bytes it was', async () => {
    net.tap.intercept = withoutSync
    await setAutomine(net.chain, false)
    await reopen({ replaceAfterSeconds: 0.2 })
    const first = await run({}, 20)
    if (first.kind !== 'pending') throw new Error(first.kind)
    await untilKnown(net.chain, first.transaction)
    net.tap.intercept = lost
    await until(() => transactions().length > 1)
    await desk.crash()
    await mine(net.chain)
    net.tap.intercept = undefined
    await open()
    await until(() => stateOf() === 'confirmed')
    expect(desk.settlement.errand('refund:1')?.transaction).toBe(first.transaction)
    expect(await moved()).toBe(7n)
  })

  test('behavior: a payment in the meantime takes no nonce of an errand', async () => {
    await setAutomine(net.chain, false)
    expect((await run({}, 20)).kind).toBe('pending')
    await reopen()
    const transfer = signTransfer(network)
    const paying = desk.pay(transfer)
    expect((await mineWhile(net.chain, paying)).kind).toBe('confirmed')
    await until(() => stateOf() === 'confirmed')
    expect(transactions().map(({ nonce }) => nonce)).toEqual(
      [0, 1].map((each) => each + (transactions()[0]?.nonce ?? 0)),
    )
  })

  test('behavior: an errand of a key that is gone is still sent and watched', async () => {
    net.tap.intercept = lost
    expect((await run({}, 20)).kind).toBe('pending')
    net.tap.intercept = undefined
    await reopen({}, { relayerKeys: [Crypto.bytes(account(5).privateKey)] })
    await until(() => stateOf() === 'confirmed')
    expect(await run()).toMatchObject({ kind: 'confirmed', receipt: { success: true } })
    expect(await moved()).toBe(7n)
  })
})

describe('a reorganisation', () => {
  const reorganise = (depth: number) => net.chain.rpc('anvil_reorg', [depth, []])

  test('behavior: takes an errand back to broadcast and sends the same bytes', async () => {
    const end = await run()
    await reorganise(1)
    await until(() => told.length >= 3)
    expect(told).toEqual(['refund:1 confirmed', 'refund:1 broadcast', 'refund:1 confirmed'])
    expect(desk.settlement.errand('refund:1')).toMatchObject({
      transaction: 'transaction' in end ? end.transaction : '',
    })
    expect(transactions()).toMatchObject([{ state: 'mined' }])
    expect(await moved()).toBe(7n)
  })

  test('behavior: while the process was down is found by the next one', async () => {
    const end = await run()
    await desk.crash()
    await reorganise(2)
    expect(await moved()).toBe(0n)
    await open()
    expect(await run()).toMatchObject({
      kind: 'confirmed',
      transaction: 'transaction' in end ? end.transaction : '',
    })
    await until(async () => (await moved()) === 7n)
    expect(transactions()).toMatchObject([{ state: 'mined' }])
  })

  test('behavior: that brings older bytes back finds that they ran', async () => {
    net.tap.intercept = withoutSync
    await setAutomine(net.chain, false)
    await reopen({ replaceAfterSeconds: 0.2 })
    const snapshot = await net.chain.rpc('evm_snapshot', [])
    const running = run()
    await until(() => transactions().length > 1)
    await untilKnown(net.chain, transactions()[1]?.hash ?? '0x')
    await mine(net.chain)
    const end = await running
    const [oldest] = transactions()
    expect(end).not.toMatchObject({ transaction: oldest?.hash })
    await desk.crash()
    await net.chain.rpc('evm_revert', [snapshot])
    await net.chain.rpc('anvil_dropAllTransactions', [])
    await net.chain.rpc('eth_sendRawTransaction', [oldest?.raw])
    await mine(net.chain)
    expect(await moved()).toBe(7n)
    await open()
    await until(() => desk.settlement.errand('refund:1')?.transaction === oldest?.hash)
    expect(end.kind).toBe('confirmed')
    expect(stateOf()).toBe('confirmed')
    expect(await moved()).toBe(7n)
  })
})

describe("another transaction at an errand's nonce", () => {
  /** Looks at which the nonce seemed taken; the health checks ask for another count. */
  const looks = () =>
    net.tap.calls.filter(
      ({ method, params }) => method === 'eth_getTransactionCount' && params[1] === 'latest',
    ).length

  async function stolen(): Promise<ErrandEnd> {
    let isStolen = false
    net.tap.intercept = async ({ method }) => {
      if (!isSend(method) || isStolen) return undefined
      isStolen = true
      await sendForeign(transactions()[0]?.nonce ?? 0)
      return undefined
    }
    return run({}, 20)
  }

  test('behavior: has replaced it once a reorganisation cannot take that back', async () => {
    await reopen({}, { errandProofMs: 0 })
    await stolen()
    // The lane goes on above it.
    expect((await desk.pay(signTransfer(network))).kind).toBe('confirmed')
    await until(() => looks() > 3)
    expect(stateOf()).toBe('broadcast')
    await mine(net.chain, 16)
    await until(() => stateOf() === 'replaced')
    expect(await run()).toMatchObject({ kind: 'replaced' })
    expect(told).toEqual(['refund:1 replaced'])
    expect(transactions()).toMatchObject([{ state: 'replaced' }, { state: 'mined' }])
    expect(await moved()).toBe(0n)
  })

  test('behavior: that is taken away itself lets the errand run', async () => {
    const snapshot = await net.chain.rpc('evm_snapshot', [])
    await stolen()
    await until(() => looks() > 3)
    expect(stateOf()).toBe('broadcast')
    await net.chain.rpc('evm_revert', [snapshot])
    await until(() => stateOf() === 'confirmed')
    expect(await moved()).toBe(7n)
  })
})

test('behavior: an errand under way is on the disk as the tables want it', async () => {
  await run()
  const row = createErrands(desk.db).find('refund:1')
  expect(row).toMatchObject({ kind: 'refund', valueWei: 7n, relayer: account(0).address })
  expect(() =>
    desk.db.sqlite.run("UPDATE errands SET state = 'broadcast' WHERE id = 'refund:1'"),
  ).toThrow()
})
