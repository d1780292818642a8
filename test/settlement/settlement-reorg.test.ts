import { describe, expect, test } from 'bun:test'
import type { Payment } from '../../db/Payment'
import { account } from '../../src/demo/accounts'
import { execute, mine } from '../../src/demo/chains'
import { createRegistry } from '../../src/http/metrics'
import * as Transfer from '../../src/protocol/Transfer'
import { outcomeOf } from '../harness/outcome'
import { isSend, losing, ownSettlement } from '../harness/own-settlement'
import { signTransfer, until } from '../harness/settlement'

/** A desk with readable metrics, on a chain that can be reorganised. */
async function ownReorg() {
  let registry = createRegistry()
  const own = await ownSettlement({
    // The bytes of external settlements are sent again.
    chain: { hasKeys: true },
    // A node may keep what it gets during a reorganisation out of its blocks, until it is replaced.
    network: { replaceAfterSeconds: 20 },
    settlement: { meter: registry, payoutExclusive: true },
  })
  const { net, network } = own
  const eventsOf = (name: string) => own.fixture.events.filter(({ event }) => event === name)
  const { open } = own
  return Object.assign(own, {
    open(...[changes, options]: Parameters<typeof open>) {
      registry = createRegistry()
      return open(changes, { ...options, meter: registry })
    },
    eventsOf,
    /** Resolves with the balance after it; until that is read, nothing is sent again. */
    async reorganise(depth: number): Promise<bigint> {
      const { intercept } = net.tap
      const read = Promise.withResolvers<void>()
      net.tap.intercept = async (call, forward) => {
        if (isSend(call.method)) await read.promise
        return intercept?.(call, forward)
      }
      await net.chain.rpc('anvil_reorg', [depth, []])
      const paid = await own.paid()
      net.tap.intercept = intercept
      read.resolve()
      return paid
    },
    reorged: async () =>
      Number(
        /^turnpike_reorged_payments_total\{[^}]*\} (\d+)$/m.exec(await registry.render())?.[1] ?? 0,
      ),
    async payAndDeliver(transfer: Transfer.Transfer): Promise<Payment> {
      const { pay, settlement } = own.fixture
      const outcome = await pay(transfer)
      if (outcome.kind !== 'confirmed') throw new Error(outcome.kind)
      const { id } = outcome.payment
      await settlement.beginDelivery(id)
      await settlement.endDelivery(id, { delivered: true, upstreamStatus: 200, truncated: false })
      const payment = await settlement.findById(id)
      if (!payment) throw new Error('the payment is gone')
      return payment
    },
    /** Settled by account 8 and accepted by us. */
    async settledExternally(): Promise<Payment> {
      const transfer = signTransfer(network)
      await execute(net.chain, [
        { from: account(8).address, ...Transfer.call(transfer), gas: 500_000n },
      ])
      const outcome = await own.fixture.pay(transfer, { bound: true })
      if (outcome.kind !== 'confirmed') throw new Error(outcome.kind)
      return outcome.payment
    },
    stored: (all: readonly { id: string }[]) =>
      Promise.all(all.map(({ id }) => own.fixture.settlement.findById(id))),
    // Wait for the answer, too: after the reorganisation the node no longer has the bytes.
    hasRaw: () => net.tap.answered.some(({ method }) => method === 'eth_getRawTransactionByHash'),
    isConfirmed: async ({ id }: Payment) =>
      (await own.fixture.settlement.findById(id))?.state === 'confirmed' &&
      eventsOf('payment-reorganised').length > 0,
  })
}

const isConfirmed = (payment: Payment | undefined) => payment?.state === 'confirmed'

/** All fields except the place and time of the inclusion. */
function essence(payment: Payment | undefined) {
  if (!payment) return undefined
  const { blockNumber, logIndex, confirmedAt, ...rest } = payment
  return rest
}

describe.concurrent('a reorganisation', () => {
  for (const depth of [1, 2, 3, 4, 5])
    test(`a reorganisation of depth ${depth} sends the same bytes again and delivers nothing again (attack 35)`, async () => {
      await using own = await ownReorg()
      const { network } = own
      await own.payAndDeliver(signTransfer(network))
      const payments: Payment[] = []
      for (let index = 0; index < depth; index++)
        payments.push(
          await own.payAndDeliver(
            signTransfer(network, {
              method: index % 2 ? 'permit2' : 'eip3009',
              from: 1 + (index % 2),
            }),
          ),
        )
      const before = await own.paid()
      expect(await own.reorganise(depth)).toBe(before - 5_000n * BigInt(depth))
      await until(() => own.eventsOf('payment-reorganised').length === depth)
      await until(async () => {
        // anvil may forget to mine what it gets during a reorganisation.
        await mine(own.net.chain)
        return (await own.stored(payments)).every(isConfirmed)
      })
      expect(await own.paid()).toBe(before)
      expect((await own.stored(payments)).map(essence)).toEqual(payments.map(essence))
      expect(
        own
          .eventsOf('payment-reorganised')
          .map(({ fields }) => fields?.payment)
          .sort(),
      ).toEqual(payments.map(({ id }) => id).sort())
      expect(await own.reorged()).toBe(depth)
      const again = async () => own.fixture.settlement.beginDelivery(payments[0]?.id ?? '')
      expect(await outcomeOf(again())).toThrow()
      // The relayer continues.
      expect((await own.fixture.pay(signTransfer(network))).kind).toBe('confirmed')
    })

  for (const depth of [1, 3, 5])
    test(`a reorganisation of depth ${depth} while the process was down is found at the next start`, async () => {
      await using own = await ownReorg()
      const { network } = own
      const payments: Payment[] = []
      for (let index = 0; index < depth; index++)
        payments.push(await own.payAndDeliver(signTransfer(network)))
      const undelivered = await own.fixture.pay(signTransfer(network))
      if (undelivered.kind !== 'confirmed') throw new Error(undelivered.kind)
      const before = await own.paid()
      await own.fixture.crash()
      await own.reorganise(depth + 1)
      await own.open()
      const found = own.eventsOf('payment-reorganised').map(({ fields }) => fields?.payment)
      expect([...new Set(found)].toSorted()).toEqual(
        [...payments, undelivered.payment].map(({ id }) => id).toSorted(),
      )
      // A new payment takes no nonce of an old one.
      expect((await own.fixture.pay(signTransfer(network))).kind).toBe('confirmed')
      await until(async () =>
        (await own.stored([...payments, undelivered.payment])).every(isConfirmed),
      )
      expect(await own.paid()).toBe(before + 5_000n)
      expect((await own.stored(payments)).map(essence)).toEqual(payments.map(essence))
      // An undelivered answer can still be fetched.
      expect(await own.fixture.settlement.beginDelivery(undelivered.payment.id)).toMatchObject({
        attempts: 1,
      })
    })

  test('a process that stops in the middle of a reorganisation is continued by the next one', async () => {
    await using own = await ownReorg()
    const { net, network } = own
    const payment = await own.payAndDeliver(signTransfer(network))
    net.tap.intercept = losing
    await own.reorganise(1)
    await until(
      async () => (await own.fixture.settlement.findById(payment.id))?.state === 'broadcast',
    )
    await own.fixture.crash()
    net.tap.intercept = undefined
    await own.open()
    await until(
      async () => (await own.fixture.settlement.findById(payment.id))?.state === 'confirmed',
    )
    expect(essence(await own.fixture.settlement.findById(payment.id))).toEqual(essence(payment))
    expect(await own.paid()).toBe(5_000n)
  })

  test('a restart without a reorganisation makes few calls and changes nothing', async () => {
    await using own = await ownReorg()
    const { net, network } = own
    const payments: Payment[] = []
    for (let index = 0; index < 5; index++)
      payments.push(await own.payAndDeliver(signTransfer(network)))
    await own.fixture.stop()
    net.tap.calls.length = 0
    await own.open()
    expect(own.eventsOf('payment-reorganised')).toEqual([])
    const asked = net.tap.calls.filter(({ method }) => method === 'eth_getTransactionReceipt')
    expect(asked.length).toBeLessThanOrEqual(1)
    expect(await own.stored(payments)).toEqual(payments)
  })

  test('a node that lags reverts nothing', async () => {
    await using own = await ownReorg()
    const { net, network } = own
    const payment = await own.payAndDeliver(signTransfer(network))
    // Two such answers in a row would count.
    let isLate = false
    net.tap.intercept = ({ method, params }) => {
      if (method !== 'eth_getBlockByNumber' || params[0] === 'latest') return undefined
      isLate = !isLate
      return isLate ? { result: null } : undefined
    }
    const looks = () =>
      net.tap.calls.filter(
        ({ method, params }) => method === 'eth_getBlockByNumber' && params[0] !== 'latest',
      ).length
    await until(() => looks() > 4)
    expect(await own.fixture.settlement.findById(payment.id)).toEqual(payment)
    expect(own.eventsOf('payment-reorganised')).toEqual([])
  })

  test('an announced fork is checked without waiting for the next health check', async () => {
    await using own = await ownReorg()
    const { net, network } = own
    await own.fixture.stop()
    await own.open({ wsUrl: net.chain.wsUrl }, { checkMs: 600_000 })
    await until(() => own.fixture.settlement.isReady(network.id))
    await until(async () => {
      await mine(net.chain)
      return own.eventsOf('heads-live').length > 0
    })
    const payment = await own.payAndDeliver(signTransfer(network))
    await own.reorganise(2)
    await until(() => own.eventsOf('payment-reorganised').length === 1)
    await until(
      async () => (await own.fixture.settlement.findById(payment.id))?.state === 'confirmed',
    )
    expect(await own.paid()).toBe(5_000n)
  })
})

describe.concurrent('an external settlement', () => {
  test('an external settlement that a reorganisation removes is sent again with its own bytes', async () => {
    await using own = await ownReorg()
    const payment = await own.settledExternally()
    await until(own.hasRaw)
    expect(await own.reorganise(3)).toBe(0n)
    await until(() => own.isConfirmed(payment))
    expect(essence(await own.fixture.settlement.findById(payment.id))).toEqual(essence(payment))
    expect(await own.paid()).toBe(5_000n)
    expect(await own.reorged()).toBe(1)
  })

  test('an external settlement whose bytes no node has is replaced by our own', async () => {
    await using own = await ownReorg()
    const { net } = own
    net.tap.intercept = ({ method }) =>
      method === 'eth_getRawTransactionByHash'
        ? { error: { code: -32601, message: 'method not found' } }
        : undefined
    const payment = await own.settledExternally()
    await until(own.hasRaw)
    await own.reorganise(3)
    await until(() => own.isConfirmed(payment))
    expect((await own.fixture.settlement.findById(payment.id))?.transaction).not.toBe(
      payment.transaction,
    )
    expect(await own.paid()).toBe(5_000n)
  })

  test('a removed external settlement is found after a restart', async () => {
    await using own = await ownReorg()
    const payment = await own.settledExternally()
    await own.fixture.crash()
    await own.reorganise(3)
    await own.open()
    await until(() => own.isConfirmed(payment))
    expect(await own.paid()).toBe(5_000n)
  })

  test('an external settlement that no node accepts now waits until one does', async () => {
    await using own = await ownReorg()
    const { net } = own
    const payment = await own.settledExternally()
    await until(own.hasRaw)
    net.tap.intercept = losing
    await own.reorganise(3)
    await until(
      async () => (await own.fixture.settlement.findById(payment.id))?.state === 'broadcast',
    )
    expect(await own.paid()).toBe(0n)
    await until(() => own.eventsOf('rpc-fault').length > 0)
    expect(['broadcast', 'reverted']).toContain(
      (await own.fixture.settlement.findById(payment.id))?.state ?? '',
    )
    net.tap.intercept = undefined
    await until(() => own.isConfirmed(payment))
    expect(await own.paid()).toBe(5_000n)
  })
})
