import { describe, expect, test } from 'bun:test'
import { encodeFunctionData, type Hex, parseAbi, parseTransaction } from 'viem'
import type { JobRider } from '../../db/Ledger'
import type { NetworkConfig } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import { mine } from '../../src/demo/chains'
import * as Crypto from '../../src/protocol/Crypto'
import { setAutomine } from '../harness/chains'
import { type OwnJobs, ownJobs } from '../harness/jobs'
import { isSend, losing, withoutSync } from '../harness/own-settlement'
import { jobOf, mineWhile, signTransfer, until, untilKnown } from '../harness/settlement'

const receiver = account(8).address

/** A transaction of another program with the relayer's key, at a nonce of ours. */
const sendForeign = ({ net }: OwnJobs, nonce: number) =>
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

/** A grant to be written with a job, where the day has room for so many. */
function grantOf({ id, asset }: NetworkConfig, grants = 100): JobRider {
  const row = {
    network: id,
    address: account(8).address,
    token: asset.address,
    kind: 'grant' as const,
    amountWei: 7n,
    feeWei: 1n,
    approveHash: null,
    createdAt: Date.now(),
  }
  const budget = { from: 0, grants, wei: 1_000_000n }
  return { kind: 'grant', grant: { isTopUp: false, row, budget, isSigned: true } }
}

const grants = ({ fixture }: OwnJobs) =>
  fixture.sql.query('SELECT transaction_hash hash FROM grants').all()
const job = ({ fixture }: OwnJobs) =>
  fixture.sql.query("SELECT state, transaction_hash hash FROM jobs WHERE id = 'refund:1'").get()

describe.concurrent('a job', () => {
  test("a job is written before its bytes are sent, together with its owner's rows", async () => {
    await using own = await ownJobs()
    const { net, network } = own
    let onDisk: unknown
    net.tap.intercept = ({ method }) => {
      if (isSend(method)) onDisk ??= [own.transactions(), grants(own), job(own)]
      return undefined
    }
    const end = await own.fixture.settlement.run(jobOf(network), {
      waitMs: 120_000,
      rider: grantOf(network),
    })
    if (end.kind !== 'confirmed') throw new Error(end.kind)
    expect(end.receipt).toMatchObject({ hash: end.transaction, success: true, logs: [] })
    expect(onDisk).toMatchObject([
      [{ state: 'sent', kind: 'refund', hash: end.transaction }],
      [{ hash: end.transaction }],
      { state: 'broadcast', hash: end.transaction },
    ])
    expect(grants(own)).toEqual([{ hash: end.transaction }])
    expect(await own.fixture.settlement.job('refund:1')).toEqual({
      state: 'confirmed',
      transaction: end.transaction,
      blockNumber: end.receipt.blockNumber,
    })
    await own.untilTold('refund:1 confirmed')
    expect(own.told).toEqual(['refund:1 confirmed'])
    expect(await own.moved()).toBe(7n)
  })

  test("error: a job whose owner's rows fail is neither written nor sent, and may be tried again", async () => {
    await using own = await ownJobs()
    const { network } = own
    const rider = grantOf(network, 0)
    const end = await own.fixture.settlement.run(jobOf(network), { waitMs: 120_000, rider })
    expect(end).toEqual({ kind: 'refused', reason: 'grants-spent' })
    expect(own.transactions()).toEqual([])
    expect(grants(own)).toEqual([])
    expect(await own.fixture.settlement.job('refund:1')).toBeUndefined()
    expect((await own.run()).kind).toBe('confirmed')
    expect(await own.moved()).toBe(7n)
  })

  test('concurrent jobs of one id are one transaction', async () => {
    await using own = await ownJobs()
    const { network } = own
    const ends = await Promise.all(
      Array.from({ length: 20 }, () =>
        own.fixture.settlement.run(jobOf(network), { waitMs: 120_000, rider: grantOf(network) }),
      ),
    )
    expect(new Set(ends.map((end) => 'transaction' in end && end.transaction)).size).toBe(1)
    expect(ends.every(({ kind }) => kind === 'confirmed')).toBe(true)
    expect(grants(own)).toHaveLength(1)
    expect(own.transactions()).toHaveLength(1)
    expect(await own.moved()).toBe(7n)
  })

  test('the result of a job is read from the database, after a restart too', async () => {
    await using own = await ownJobs()
    const { net } = own
    const end = await own.run()
    await own.reopen()
    net.tap.calls.length = 0
    expect(await own.run()).toEqual(end)
    expect(net.tap.calls.filter(({ method }) => isSend(method))).toEqual([])
    expect(await own.moved()).toBe(7n)
  })

  test('error: a job that reverts on chain has failed, with its receipt', async () => {
    await using own = await ownJobs()
    const { network } = own
    const abi = parseAbi(['function transfer(address to, uint256 value)'])
    const data = encodeFunctionData({ abi, args: [receiver, 10n ** 30n] })
    const swap = {
      id: 'swap:1',
      kind: 'swap',
      to: network.asset.address,
      data,
      valueWei: 0n,
    } as const
    const end = await own.run(swap)
    expect(end).toMatchObject({ kind: 'failed', receipt: { success: false } })
    expect(await own.run(swap)).toEqual(end)
    await own.untilTold('swap:1 failed')
    expect(own.told).toEqual(['swap:1 failed'])
    expect(own.transactions()).toMatchObject([{ state: 'failed', kind: 'swap' }])
  })

  test('a job that is not decided in time is pending and continues', async () => {
    await using own = await ownJobs()
    const { net } = own
    await setAutomine(net.chain, false)
    const end = await own.run({}, 50)
    expect(end.kind).toBe('pending')
    expect(await mineWhile(net.chain, own.run())).toMatchObject({
      kind: 'confirmed',
      transaction: end.kind === 'pending' ? end.transaction : '0x',
    })
    expect(await own.moved()).toBe(7n)
  })

  test('a job waits for the configured confirmations', async () => {
    await using own = await ownJobs()
    await own.reopen({ confirmations: 3 })
    await own.start()
    await mineUntil(own, 'refund:1')
  })

  test('a job never shares a transaction with payments', async () => {
    await using own = await ownJobs()
    const { net, network } = own
    await setAutomine(net.chain, false)
    const paying = [1, 2, 3].flatMap(() => [
      own.fixture.pay(signTransfer(network)),
      own.fixture.pay(signTransfer(network, { from: 2 })),
    ])
    const ids = ['refund:1', 'refund:2', 'refund:3']
    const running = ids.map((id) => own.run({ id }))
    await until(() => own.transactions().length >= 4)
    const outcomes = await mineWhile(net.chain, Promise.all(paying))
    const ends = await mineWhile(net.chain, Promise.all(running))
    expect([...outcomes, ...ends].every(({ kind }) => kind === 'confirmed')).toBe(true)
    const refunds = own.transactions().filter(({ kind }) => kind === 'refund')
    expect(refunds).toHaveLength(3)
    for (const { raw } of refunds)
      expect(parseTransaction(raw as `0x02${string}`)).toMatchObject({
        to: receiver.toLowerCase(),
        value: 7n,
      })
    expect(await own.moved()).toBe(21n)
  })
})

describe.concurrent('a stuck job', () => {
  test('a stuck job is sent with higher fees at its nonce, and runs once', async () => {
    await using own = await ownJobs()
    const { net } = own
    net.tap.intercept = withoutSync
    await setAutomine(net.chain, false)
    await own.reopen({ replaceAfterSeconds: 0.2 })
    const running = own.run()
    await until(async () => {
      const rows = own.transactions()
      const known = await own.fixture.settlement.job('refund:1')
      return rows.length > 1 && known?.transaction === rows.at(-1)?.hash
    })
    const end = await mineWhile(net.chain, running)
    const rows = own.transactions()
    expect(new Set(rows.map(({ nonce }) => nonce)).size).toBe(1)
    expect(rows.filter(({ state }) => state === 'mined').map(({ hash }) => hash)).toEqual([
      end.kind === 'confirmed' ? end.transaction : '0x',
    ])
    expect(rows.every(({ kind }) => kind === 'refund')).toBe(true)
    await own.untilTold('refund:1 confirmed')
    expect(await own.moved()).toBe(7n)
  })

  test('a stuck job is never cancelled, however late it is', async () => {
    await using own = await ownJobs()
    const { net } = own
    net.tap.intercept = withoutSync
    await setAutomine(net.chain, false)
    let ahead = 0
    await own.reopen({ replaceAfterSeconds: 0.2 }, { now: () => Date.now() + ahead })
    await own.start()
    ahead = 100 * 86_400_000
    await until(() => own.transactions().length > 2)
    expect(own.transactions().every(({ kind }) => kind === 'refund')).toBe(true)
    await mineUntil(own, 'refund:1')
    expect(await own.moved()).toBe(7n)
  })

  test('a stuck job at the fee cap keeps its nonce and its bytes until it is included', async () => {
    await using own = await ownJobs()
    const { net } = own
    net.tap.intercept = withoutSync
    await setAutomine(net.chain, false)
    await own.reopen({ replaceAfterSeconds: 0.2, feeCapWei: 1_200_000_000n })
    await own.start()
    await until(() => own.fixture.settlement.status()[0]?.reason?.includes('fee cap') === true)
    expect((await own.run({ id: 'refund:2' }, 20)).kind).toBe('unavailable')
    expect(await own.fixture.settlement.job('refund:2')).toBeUndefined()
    await mineUntil(own, 'refund:1')
    expect((await mineWhile(net.chain, own.run({ id: 'refund:2' }))).kind).toBe('confirmed')
    expect(await own.moved()).toBe(14n)
  })
})

async function mineUntil({ net, stateOf }: OwnJobs, id: string): Promise<void> {
  await until(async () => {
    await mine(net.chain)
    return (await stateOf(id)) === 'confirmed'
  })
}

describe.concurrent('after a crash', () => {
  test('after a crash the same bytes are sent when they never arrived', async () => {
    await using own = await ownJobs()
    const { net } = own
    net.tap.intercept = losing
    const hash = await own.start()
    await own.fixture.crash()
    net.tap.intercept = undefined
    await own.open()
    await until(async () => (await own.stateOf()) === 'confirmed')
    expect(own.transactions()).toMatchObject([{ hash, state: 'mined' }])
    expect(await own.run()).toMatchObject({ kind: 'confirmed', transaction: hash })
    expect(await own.moved()).toBe(7n)
  })

  test('after a crash a job that reached no node is sent, not cancelled', async () => {
    await using own = await ownJobs()
    const { net } = own
    net.tap.intercept = losing
    const hash = await own.start()
    await own.reopen({}, { recover: false })
    await own.fixture.crash()
    net.tap.intercept = undefined
    await own.open()
    await until(async () => (await own.stateOf()) === 'confirmed')
    expect(own.transactions()).toMatchObject([{ hash, state: 'mined' }])
    expect(await own.moved()).toBe(7n)
  })

  test('after a crash a job below payments keeps its nonce, and they keep theirs', async () => {
    await using own = await ownJobs()
    const { net, network } = own
    net.tap.intercept = losing
    await own.start()
    const transfer = signTransfer(network)
    await own.begin(transfer)
    await own.start({ id: 'refund:2' })
    await own.fixture.crash()
    net.tap.intercept = undefined
    await own.open()
    await until(async () => (await own.fixture.settlement.find(transfer))?.state === 'confirmed')
    await until(
      async () =>
        (await own.stateOf()) === 'confirmed' && (await own.stateOf('refund:2')) === 'confirmed',
    )
    expect(own.transactions()).toMatchObject([
      { kind: 'refund', state: 'mined' },
      { kind: 'payment', state: 'mined' },
      { kind: 'refund', state: 'mined' },
    ])
    expect(await own.moved()).toBe(14n)
  })

  test('after a crash an included job is found, whichever of its transactions it was', async () => {
    await using own = await ownJobs()
    const { net } = own
    net.tap.intercept = withoutSync
    await setAutomine(net.chain, false)
    await own.reopen({ replaceAfterSeconds: 0.2 })
    const hash = await own.start()
    await untilKnown(net.chain, hash)
    net.tap.intercept = losing
    await until(() => own.transactions().length > 1)
    await own.fixture.crash()
    await mine(net.chain)
    net.tap.intercept = undefined
    await own.open()
    await until(async () => (await own.stateOf()) === 'confirmed')
    expect((await own.fixture.settlement.job('refund:1'))?.transaction).toBe(hash)
    expect(await own.moved()).toBe(7n)
  })

  test('a later payment takes no nonce of a job', async () => {
    await using own = await ownJobs()
    const { net, network } = own
    await setAutomine(net.chain, false)
    await own.start()
    await own.reopen()
    const transfer = signTransfer(network)
    const paying = own.fixture.pay(transfer)
    expect((await mineWhile(net.chain, paying)).kind).toBe('confirmed')
    await until(async () => (await own.stateOf()) === 'confirmed')
    expect(own.transactions().map(({ nonce }) => nonce)).toEqual(
      [0, 1].map((each) => each + (own.transactions()[0]?.nonce ?? 0)),
    )
  })

  test('a job of a removed key is still sent and watched', async () => {
    await using own = await ownJobs()
    const { net } = own
    net.tap.intercept = losing
    await own.start()
    await own.fixture.crash()
    net.tap.intercept = undefined
    await own.open({}, { relayerKeys: [Crypto.bytes(account(5).privateKey)] })
    await until(async () => (await own.stateOf()) === 'confirmed')
    expect(await own.run()).toMatchObject({ kind: 'confirmed', receipt: { success: true } })
    expect(await own.moved()).toBe(7n)
  })
})

describe.concurrent('a reorganisation', () => {
  const reorganise = ({ net }: OwnJobs, depth: number) => net.chain.rpc('anvil_reorg', [depth, []])

  test('a reorganisation returns a job to broadcast and sends the same bytes', async () => {
    await using own = await ownJobs()
    const end = await own.run()
    await reorganise(own, 1)
    await until(() => own.told.length >= 3)
    expect(own.told).toEqual(['refund:1 confirmed', 'refund:1 broadcast', 'refund:1 confirmed'])
    expect(await own.fixture.settlement.job('refund:1')).toMatchObject({
      transaction: 'transaction' in end ? end.transaction : '',
    })
    expect(own.transactions()).toMatchObject([{ state: 'mined' }])
    expect(await own.moved()).toBe(7n)
  })

  test('a reorganisation while the process was down is found at the next start', async () => {
    await using own = await ownJobs()
    const end = await own.run()
    await own.fixture.crash()
    await reorganise(own, 2)
    expect(await own.moved()).toBe(0n)
    await own.open()
    expect(await own.run()).toMatchObject({
      kind: 'confirmed',
      transaction: 'transaction' in end ? end.transaction : '',
    })
    await until(async () => (await own.moved()) === 7n)
    expect(own.transactions()).toMatchObject([{ state: 'mined' }])
  })

  test('a reorganisation that includes older bytes records them', async () => {
    await using own = await ownJobs()
    const { net } = own
    net.tap.intercept = withoutSync
    await setAutomine(net.chain, false)
    await own.reopen({ replaceAfterSeconds: 0.2 })
    const snapshot = await net.chain.rpc('evm_snapshot', [])
    const running = own.run()
    await until(() => own.transactions().length > 1)
    await untilKnown(net.chain, own.transactions()[1]?.hash ?? '0x')
    await mine(net.chain)
    const end = await running
    const [oldest] = own.transactions()
    expect(end).not.toMatchObject({ transaction: oldest?.hash })
    await own.fixture.crash()
    await net.chain.rpc('evm_revert', [snapshot])
    await net.chain.rpc('anvil_dropAllTransactions', [])
    await net.chain.rpc('eth_sendRawTransaction', [oldest?.raw])
    await mine(net.chain)
    expect(await own.moved()).toBe(7n)
    await own.open()
    await until(
      async () => (await own.fixture.settlement.job('refund:1'))?.transaction === oldest?.hash,
    )
    expect(end.kind).toBe('confirmed')
    expect(await own.stateOf()).toBe('confirmed')
    expect(await own.moved()).toBe(7n)
  })
})

describe.concurrent("another transaction at a job's nonce", () => {
  /** Polls in which the nonce seemed used; the health checks read another count. */
  const looks = ({ net }: OwnJobs) =>
    net.tap.calls.filter(
      ({ method, params }) => method === 'eth_getTransactionCount' && params[1] === 'latest',
    ).length

  function steal(own: OwnJobs): Promise<Hex> {
    let isStolen = false
    own.net.tap.intercept = async ({ method }) => {
      if (!isSend(method) || isStolen) return undefined
      isStolen = true
      await sendForeign(own, own.transactions()[0]?.nonce ?? 0)
      return undefined
    }
    return own.start()
  }

  test('a job is replaced once a reorganisation cannot undo that', async () => {
    await using own = await ownJobs()
    const { net, network } = own
    await own.reopen({}, { jobProofMs: 0 })
    await steal(own)
    // The relayer continues above it.
    expect((await own.fixture.pay(signTransfer(network))).kind).toBe('confirmed')
    await until(() => looks(own) > 3)
    expect(await own.stateOf()).toBe('broadcast')
    await mine(net.chain, 16)
    await until(async () => (await own.stateOf()) === 'replaced')
    expect(await own.run()).toMatchObject({ kind: 'replaced' })
    await own.untilTold('refund:1 replaced')
    expect(own.told).toEqual(['refund:1 replaced'])
    expect(own.transactions()).toMatchObject([{ state: 'replaced' }, { state: 'mined' }])
    expect(await own.moved()).toBe(0n)
  })

  test('a job runs when the other transaction is removed', async () => {
    await using own = await ownJobs()
    const { net } = own
    const snapshot = await net.chain.rpc('evm_snapshot', [])
    await steal(own)
    await until(() => looks(own) > 3)
    expect(await own.stateOf()).toBe('broadcast')
    await net.chain.rpc('evm_revert', [snapshot])
    await until(async () => (await own.stateOf()) === 'confirmed')
    expect(await own.moved()).toBe(7n)
  })
})

test.concurrent('a job in progress has a valid row on the disk', async () => {
  await using own = await ownJobs()
  await own.run()
  const row = await own.fixture.ledger.jobs.find('refund:1')
  expect(row).toMatchObject({ kind: 'refund', valueWei: 7n, relayer: account(0).address })
  expect(() =>
    own.fixture.sql.run("UPDATE jobs SET state = 'broadcast' WHERE id = 'refund:1'"),
  ).toThrow()
})
