import { describe, expect, test } from 'bun:test'
import type { Payment } from '../db/Payment'
import { KnownMoneyError, type Outcome } from '../src/settlement/send/Outcome'
import { failureOf, outcomeOf } from './harness/outcome'
import { type Scripted, scripted } from './harness/scripted'
import { purposeOf, until } from './harness/settlement'

/** Money that is looked up while a node simulates its transfer. */

type Transfer = ReturnType<Scripted['sign']>
type Found = ReturnType<typeof Promise.withResolvers<Payment | undefined>>

/** Settles as the gateway does, with a read that ends when the test says so. */
function settling(own: Scripted, transfer: Transfer) {
  const found: Found = Promise.withResolvers()
  const reads = { count: 0 }
  const outcome: Promise<Outcome> = own.settlement.settle(transfer, purposeOf(), {
    waitMs: 120_000,
    receivedAt: own.clock.ms,
    isKeySigned: () => true,
    isUnknown: true,
    findKnown() {
      reads.count++
      return found.promise
    },
  })
  outcome.catch(() => undefined)
  return { found, reads, outcome }
}

const simulations = ({ node }: Scripted) =>
  node.calls.filter(({ method }) => method === 'eth_call').length

/** Occupies the relayer, so that payments of one turn share the next transaction. */
async function occupied(own: Scripted): Promise<void> {
  own.node.onSend = () => 'keep'
  await own.begin(own.sign({ from: 3 }))
  own.node.onSend = () => 'include'
}

/** A payment of the money, as another gateway would have written it. */
async function paid(own: Scripted): Promise<Payment> {
  const transfer = own.sign()
  expect((await own.pay(transfer)).kind).toBe('confirmed')
  return own.payment(transfer)
}

describe('money that is looked up beside its simulation', () => {
  test('behavior: unknown money is sent once it was looked up', async () => {
    await using own = await scripted()
    const asked = simulations(own)
    const transfer = own.sign()
    const { found, reads, outcome } = settling(own, transfer)
    await until(() => simulations(own) > asked && reads.count > 0)
    found.resolve(undefined)
    expect((await outcome).kind).toBe('confirmed')
    expect(await own.payment(transfer)).toMatchObject({ state: 'confirmed' })
  })

  test('error: known money is neither written nor sent, and another payment of its turn is', async () => {
    await using own = await scripted()
    const known = await paid(own)
    await occupied(own)
    const [sent, written] = [own.node.sends.length, own.rows().length]
    const [transfer, other] = [own.sign(), own.sign({ from: 2 })]
    const first = settling(own, transfer)
    const second = settling(own, other)
    await until(() => first.reads.count > 0 && second.reads.count > 0)
    second.found.resolve(undefined)
    first.found.resolve(known)
    expect(await failureOf(first.outcome)).toEqual(new KnownMoneyError())
    await until(() => own.node.sends.length > sent)
    own.chain.mine()
    expect((await second.outcome).kind).toBe('confirmed')
    expect(await own.settlement.find(transfer)).toBeUndefined()
    expect([own.node.sends.length, own.rows().length]).toEqual([sent + 1, written + 1])
  })

  test('error: a read that fails ends its payment, and another one of its turn is sent', async () => {
    await using own = await scripted()
    await occupied(own)
    const sent = own.node.sends.length
    const [transfer, other] = [own.sign(), own.sign({ from: 2 })]
    const first = settling(own, transfer)
    const second = settling(own, other)
    await until(() => first.reads.count > 0 && second.reads.count > 0)
    first.found.reject(new Error('the database has gone'))
    second.found.resolve(undefined)
    expect(await outcomeOf(first.outcome)).toThrow('the database has gone')
    await until(() => own.node.sends.length > sent)
    own.chain.mine()
    expect((await second.outcome).kind).toBe('confirmed')
    expect(await own.settlement.find(transfer)).toBeUndefined()
  })

  test('error: known money that another gateway has sent is not waited for', async () => {
    await using own = await scripted()
    own.node.onSend = () => 'keep'
    const known = await own.begin(own.sign({ from: 2 }))
    const first = settling(own, own.sign())
    first.found.resolve(known)
    expect(await failureOf(first.outcome)).toEqual(new KnownMoneyError())
    expect((await own.payment(known.transfer)).state).toBe('broadcast')
  })

  test('error: known money is told while a node does not answer, and while no relayer is free', async () => {
    await using own = await scripted({ settlement: { rpcTimeoutMs: 600_000 } })
    const known = await paid(own)
    own.node.answer = ({ method }) =>
      method === 'eth_call' ? new Response(new ReadableStream()) : undefined
    const asked = simulations(own)
    const first = settling(own, own.sign())
    await until(() => simulations(own) > asked)
    const second = settling(own, own.sign({ from: 2 }))
    second.found.resolve(known)
    expect(await failureOf(second.outcome)).toEqual(new KnownMoneyError())
    first.found.resolve(known)
    expect(await failureOf(first.outcome)).toEqual(new KnownMoneyError())
  })

  test('error: known money is told before a refusal that needs no node', async () => {
    await using own = await scripted()
    const known = await paid(own)
    const expired = own.sign({ validBefore: BigInt(Math.floor(own.clock.ms / 1_000) - 1) })
    const asked = simulations(own)
    const first = settling(own, expired)
    first.found.resolve(known)
    expect(await failureOf(first.outcome)).toEqual(new KnownMoneyError())
    const second = settling(own, expired)
    second.found.resolve(undefined)
    expect(await second.outcome).toMatchObject({
      kind: 'refused',
      reason: 'invalid_exact_evm_payload_authorization_valid_before',
    })
    expect(simulations(own)).toBe(asked)
  })
})
