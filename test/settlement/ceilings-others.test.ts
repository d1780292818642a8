import { describe, expect, test } from 'bun:test'
import type { Authorization } from '../../db/Authorization'
import type { Launch } from '../../db/Ledger'
import type { Purpose } from '../../db/Payment'
import { createClock } from '../../src/chain/clock'
import { createHead } from '../../src/chain/head'
import { account } from '../../src/demo/accounts'
import { enqueueNamed, pump } from '../../src/settlement/send/queue'
import { chargesMaxOf, facilitatorMax } from '../../src/settlement/send/relayer'
import { createPayers } from '../../src/settlement/state/payers'
import {
  type Ceiling,
  type ChainState,
  type Context,
  createRelayer,
  type QueuedPayment,
} from '../../src/settlement/state/state'
import { countOf, refuseBehind, refuseFull } from '../../src/settlement/upto/ceilings'
import * as Charges from '../../src/settlement/upto/charges'
import { networkOf, purposeOf, relayerKey, signTransfer, until } from '../harness/settlement'

const network = networkOf('http://127.0.0.1', 'usdc')
const facilitator = account(0).address
const transfer = { ...signTransfer(network), upto: { facilitator, ceilingAtomic: 10n } }

const ceilingOf = (each: typeof transfer): Ceiling => ({
  transfer: each,
  verified: undefined,
  isReserved: true,
  close() {},
})

const credit = { refresh: async () => {}, lose() {}, recover() {} }

/** A process without the relayer that the payer named, and what the ledger has of the charge. */
async function sweepWith(state: string | undefined, payment?: string) {
  const ceilings = new Map([['pay_1', ceilingOf(transfer)]])
  const context = {
    ledger: {
      lanes: { isShared: true, has: () => false, isOfAnother: () => true },
      authorizations: {
        open: async () => [],
        findById: async () => state && { id: 'pay_1', state, transfer },
      },
      payments: {
        findById: async () => payment && { id: 'pay_1', state: payment, transfer, purpose: {} },
      },
    },
    chains: new Map([[network.id, { relayers: [{ address: facilitator }] }]]),
    progress: { charging: new Map() },
    ceilings,
    payers: createPayers(() => 0),
    credit,
  }
  await Charges.resumeCharges(context as unknown as Context, false)
  return ceilings.has('pay_1')
}

describe.concurrent('the ceiling of a charge that another process settles', () => {
  test('a sweep ends a ceiling when its charge has failed without a payment', async () => {
    expect(await sweepWith('failed')).toBe(false)
  })

  test('a sweep ends a ceiling when its payment is decided and no notification has come', async () => {
    expect(await sweepWith('sent', 'confirmed')).toBe(false)
  })

  test('a ceiling stays while its charge may be settled, and while it is written', async () => {
    expect(await sweepWith(undefined)).toBe(true)
    expect(await sweepWith('authorized')).toBe(true)
    expect(await sweepWith('metered')).toBe(true)
    expect(await sweepWith('sent', 'broadcast')).toBe(true)
  })
})

test('the ceilings of a relayer are counted apart from those of others and of other networks', () => {
  const otherNetwork = networkOf('http://127.0.0.1', 'usdg').id
  const others = [
    { ...transfer, network: otherNetwork },
    { ...transfer, upto: { ...transfer.upto, facilitator: account(1).address } },
  ]
  const all = [transfer, transfer, ...others].map(ceilingOf)
  const ceilings = new Map(all.map((each, index) => [`pay_${index}`, each]))
  expect(countOf(ceilings, transfer, facilitator)).toBe(2)
  expect(countOf(ceilings, { network: otherNetwork }, facilitator)).toBe(1)
  expect(countOf(ceilings, transfer, account(1).address)).toBe(1)
})

describe.concurrent('the room of a relayer, with blocks of 2 s', () => {
  /** A chain where `count` charges of a product wait for the relayer. */
  const chainWith = (product: string, count: number) => {
    const named = Array.from({ length: count }, (_, i) => ({
      request: { id: `waits_${i}`, purpose: { product } },
      transfer,
    }))
    return { network, head: { blockTimeMs: 2_000 }, queue: { named } } as unknown as ChainState
  }
  const contextWith = (count: number, hasPaid = false) => {
    const ceilings = new Map<string, Ceiling>()
    for (let i = 0; i < count; i++) ceilings.set(`pay_${i}`, ceilingOf(transfer))
    const credit = { hasPaid: () => hasPaid }
    return { ceilings, credit, now: () => 0 } as unknown as Context
  }
  const purpose = { product: 'gateway', merchant: 'shop' } as Purpose

  test('charges of ours that wait without a ceiling count, those for other servers do not', () => {
    const other = { transfer: { ...transfer, payer: account(9).address }, purpose }
    const refusalOf = (open: number, product: string, waiting: number) =>
      refuseFull(contextWith(open), chainWith(product, waiting), other)
    expect(refusalOf(231, 'gateway', 0)).toBeUndefined()
    expect(refusalOf(232, 'gateway', 0)).toMatchObject({ kind: 'unavailable' })
    expect(refusalOf(200, 'gateway', 31)).toBeUndefined()
    expect(refusalOf(200, 'gateway', 32)).toMatchObject({ kind: 'unavailable' })
    expect(refusalOf(231, 'facilitator', 500)).toBeUndefined()
  })

  test('attack: a charge for another server is refused at once when it cannot be settled in time', () => {
    const refusalOf = (waiting: number, validBefore: bigint, product = 'facilitator') => {
      const chain = chainWith('facilitator', waiting)
      const other = { ...transfer, payer: account(9).address, validBefore }
      const purpose = { product } as Purpose
      return refuseBehind(contextWith(0), chain, { transfer: other, purpose })
    }
    for (const [most, seconds] of [
      [120, 300n],
      [40, 10n],
    ] as const) {
      expect(refusalOf(most - 1, seconds)).toBeUndefined()
      expect(refusalOf(most, seconds)).toMatchObject({ kind: 'unavailable' })
      expect(refusalOf(most, seconds, 'gateway')).toBeUndefined()
    }
  })

  test('attack: one payer takes eight places of a relayer, and a quarter of them after it has paid', () => {
    const signed = { transfer, purpose }
    for (const [most, hasPaid] of [
      [8, false],
      [58, true],
    ] as const) {
      const refusalOf = (open: number) =>
        refuseFull(contextWith(open, hasPaid), chainWith('gateway', 0), signed)
      expect(refusalOf(most - 1)).toBeUndefined()
      expect(refusalOf(most)).toMatchObject({ kind: 'unavailable', retryAfterSeconds: 1 })
    }
    const refusalOf = (waiting: number) =>
      refuseBehind(contextWith(0), chainWith('facilitator', waiting), {
        transfer: { ...transfer, validBefore: 300n },
        purpose: { product: 'facilitator' } as Purpose,
      })
    expect(refusalOf(29)).toBeUndefined()
    expect(refusalOf(30)).toMatchObject({ kind: 'unavailable' })
  })
})

test('charges of ours are before those for other servers, and what ends first is before others', () => {
  const queue = { named: [] as QueuedPayment[], payments: [], jobs: [] }
  const ended: bigint[] = []
  const signer = { kind: 'unchecked', isKey: () => false }
  const add = (product: string, validBefore: bigint) => {
    const queued = {
      request: { purpose: { product } },
      transfer: { ...transfer, validBefore },
      signer,
      isAlone: true,
      done: () => void ended.push(validBefore),
    }
    enqueueNamed(queue as unknown as ChainState['queue'], queued as unknown as QueuedPayment)
  }
  add('facilitator', 1n)
  add('gateway', 9n)
  add('facilitator', 2n)
  add('gateway', 8n)
  const order = queue.named.map(({ request, transfer: { validBefore } }) => [
    request.purpose.product,
    validBefore,
  ])
  expect(order).toEqual([
    ['gateway', 8n],
    ['gateway', 9n],
    ['facilitator', 1n],
    ['facilitator', 2n],
  ])
  // What has a turn is forged, and ends without a call to a node.
  const relayer = { ...createRelayer(relayerKey, { isReserved: false, isHeld: true }), next: 0 }
  const full = { ...relayer, address: facilitator, facilitating: facilitatorMax }
  const chain = { network, head: {}, health: { ready: true }, relayers: [full], queue }
  const { signal } = new AbortController()
  const context = { progress: { signal }, payers: createPayers(() => 0) }
  pump(context as unknown as Context, chain as unknown as ChainState)
  expect(ended).toEqual([8n, 9n])
  expect(queue.named.map(({ request }) => request.purpose.product)).toEqual(
    Array(2).fill('facilitator'),
  )
})

test('attack: a charge that a write refused is not written again when a later write fails', async () => {
  const queue = { named: [] as QueuedPayment[], payments: [], jobs: [] }
  const ends: string[] = []
  const fresh = createRelayer(relayerKey, { isReserved: false, isHeld: true })
  // Another transaction is open, so that the charges collect.
  const relayer = Object.assign(fresh, { next: 7, open: 1, balanceWei: 10n ** 18n })
  for (const id of ['first', 'second']) {
    const own = signTransfer(network, { from: id.length })
    const queued = {
      request: {
        ...{ id, receivedAt: 0, purpose: purposeOf() },
        verified: { balanceAtomic: 10n ** 9n, allowanceAtomic: 10n ** 9n, at: 0 },
      },
      transfer: { ...own, upto: { facilitator: relayer.address, ceilingAtomic: 9_000n } },
      signer: { kind: 'checked' },
      isAlone: true,
      call: { to: facilitator, data: '0x' },
      done: ({ kind }: { kind: string }) => void ends.push(`${id} ${kind}`),
    }
    enqueueNamed(queue as unknown as ChainState['queue'], queued as unknown as QueuedPayment)
  }
  const writes: string[][] = []
  const launch = async (...inputs: Launch[]) => {
    writes.push(inputs.flatMap((input) => input.fresh.map(({ row }) => row.id)))
    if (writes.length > 1) throw new Error('the disk is full')
    return { kind: 'refused', ids: ['first'], reason: 'payer-under-way' }
  }
  const head = Object.assign(createHead(), { baseFeeWei: 1n, tipWei: 1n })
  const chain = {
    ...{ network, head, queue, relayers: [relayer], health: { ready: true } },
    ...{ abilities: { readsCode: true }, clock: createClock() },
    client: { call: async () => '0x' },
  }
  const progress = { signal: new AbortController().signal, reading: new Set() }
  const ledger = { settling: { launch }, payments: {} }
  const context = {
    progress,
    payers: createPayers(() => 0),
    now: () => 0,
    monotonic: () => 0,
    ledger,
    log() {},
  }
  pump(context as unknown as Context, chain as unknown as ChainState)
  await until(() => ends.length > 2 || relayer.preparing === 0)
  expect(writes).toEqual([['first', 'second'], ['second'], ['second']])
  expect(ends).toEqual(['first rows-refused', 'first unavailable', 'second unavailable'])
  expect([relayer.next, relayer.open, relayer.slots.size]).toEqual([7, 1, 0])
})

test('a relayer has as many charges open as balance and budget pay for, and 16 where a node takes no more', () => {
  const gasPerDayWei = { ...network.gasPerDayWei, gateway: 10n ** 20n }
  const chain = { network: { ...network, feeCapWei: 1_000n, gasPerDayWei }, head: createHead() }
  Object.assign(chain.head, { baseFeeWei: 100n, tipWei: 0n })
  // 400,000 of gas for 200 wei each, and only half of the balance.
  const balanceOf = (charges: bigint) => 2n * 400_000n * 200n * charges
  const most = (balanceWei: bigint | undefined, mayHaveMany = true) =>
    chargesMaxOf(chain, { balanceWei, mayHaveMany })
  expect(most(balanceOf(1_000n))).toBe(64)
  expect(most(balanceOf(40n))).toBe(40)
  expect([most(balanceOf(2n)), most(undefined), most(balanceOf(1_000n), false)]).toEqual(
    Array(3).fill(16),
  )
  gasPerDayWei.gateway = balanceOf(30n)
  expect(most(balanceOf(1_000n))).toBe(30)
  Object.assign(chain.head, { baseFeeWei: 0n })
  expect(most(0n)).toBe(64)
})

test('error: the ceiling of a charge that can no longer be settled ends', async () => {
  const ceilings = new Map([['pay_1', ceilingOf(transfer)]])
  const failed: string[] = []
  const expired = { id: 'pay_1', state: 'expired', nonceUsed: true, transfer }
  const context = {
    ledger: {
      lanes: { isShared: false },
      payments: { findById: async () => expired },
      authorizations: { markFailed: async (id: string) => void failed.push(id) },
    },
    chains: new Map([[network.id, { head: { number: 9n }, relayers: [] }]]),
    progress: { charging: new Map(), running: new Map() },
    ceilings,
    payers: createPayers(() => 0),
    credit: { lose: () => undefined },
    policy: { chargeAttemptMs: 60_000 },
    metrics: { settled: () => undefined },
    now: Date.now,
    log: () => undefined,
  }
  const charged = { id: 'pay_1', transfer, purpose: purposeOf(), charge: { amountAtomic: 1n } }
  const delivered = { upstreamStatus: 200, truncated: false }
  const authorization = { ...charged, delivered, knownBlock: 1n } as unknown as Authorization
  const settling = Charges.settleCharge(context as unknown as Context, authorization, {
    waitMs: 60_000,
  })
  expect((await settling).kind).toBe('dead')
  expect([failed, ceilings.has('pay_1')]).toEqual([['pay_1'], false])
})

test('error: a read that fails after a charge was started is logged, and rejects nothing', async () => {
  const logged: string[] = []
  const gone = () => Promise.reject(new Error('the connection was lost'))
  let reads = 0
  // The first read is that of the settlement, which goes on.
  const findById = () => (reads++ === 0 ? new Promise(() => {}) : gone())
  const charged = { id: 'pay_1', state: 'metered', transfer, charge: { amountAtomic: 1n } }
  const relayer = { address: facilitator, isHeld: true, isReserved: false }
  const context = {
    ledger: {
      lanes: { isShared: true, has: () => true, isOfAnother: () => false },
      authorizations: { open: async () => [charged] },
      payments: { findById },
    },
    chains: new Map([[network.id, { relayers: [relayer] }]]),
    progress: { charging: new Map() },
    ceilings: new Map(),
    payers: createPayers(() => 0),
    credit,
    policy: { chargeAttemptMs: 1 },
    now: Date.now,
    log: (event: string) => void logged.push(event),
  }
  // What it starts rejects, which would end the process.
  await Charges.resumeCharges(context as unknown as Context, false)
  await until(() => logged.length === 1)
  expect(logged).toEqual(['settlement-fault'])
})
