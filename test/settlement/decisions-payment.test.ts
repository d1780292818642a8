import { describe, expect, test } from 'bun:test'
import type { Transfer } from '../../src/protocol/Transfer'
import { relayer, type Scripted, scripted } from '../harness/scripted'
import { hiding, lagging } from '../harness/scripted-node'

const usedReason = 'invalid_exact_evm_nonce_already_used'
const overReason = 'invalid_exact_evm_payload_authorization_valid_before'

describe.concurrent('a payment', () => {
  test('a payment is confirmed by the Transfer log of its own transaction', async () => {
    await using own = await scripted()
    const transfer = own.sign()
    const asked = own.node.calls.length
    const outcome = await own.pay(transfer)
    const transaction = own.node.sends[0]?.hash
    // The receipt came with the send: no further call reads it.
    const methods = own.node.calls.slice(asked).map(({ method }) => method)
    expect(methods).toEqual(['eth_call', 'eth_sendRawTransactionSync'])
    expect(outcome).toMatchObject({
      kind: 'confirmed',
      payment: { state: 'confirmed', transaction, logIndex: 1, blockNumber: 1_001n, transfer },
    })
    expect(own.rows()).toMatchObject([{ nonce: 0, kind: 'payment', state: 'mined' }])
  })

  test('a payer can spend its whole balance in several payments', async () => {
    await using own = await scripted()
    own.chain.fundsAtomic = 10_000n
    for (const _ of [1, 2]) expect((await own.pay(own.sign())).kind).toBe('confirmed')
    expect((await own.pay(own.sign())).kind).toBe('refused')
  })

  test('a payment whose transaction failed is sent again for the same credential', async () => {
    await using own = await scripted()
    const transfer = own.sign()
    own.chain.failing.add(transfer.nonce)
    expect((await own.pay(transfer)).kind).toBe('reverted')
    expect(await own.stateOf(transfer)).toBe('reverted')
    expect(own.node.sends).toHaveLength(1)
    expect((await own.pay(transfer)).kind).toBe('confirmed')
    expect(own.rows()).toMatchObject([
      { nonce: 0, state: 'failed' },
      { nonce: 1, state: 'mined' },
    ])
  })

  test('a payment whose account nonce another program used is sent again automatically', async () => {
    await using own = await scripted()
    const { chain, node } = own
    node.onSend = ({ nonce }) => {
      if (nonce > 0) return 'include'
      chain.useNonce(relayer)
      return 'lose'
    }
    const transfer = own.sign()
    expect((await own.pay(transfer)).kind).toBe('confirmed')
    expect(own.heard('nonce-used-by-others')).toHaveLength(1)
    expect(own.rows()).toMatchObject([
      { nonce: 0, state: 'replaced' },
      { nonce: 1, state: 'mined' },
    ])
  })

  test('a payment whose account nonce seemed used in two polls only keeps its transaction', async () => {
    await using own = await scripted()
    const { chain, node } = own
    node.onSend = () => 'keep'
    let looks = 0
    node.answer = ({ method, params }) => {
      if (method !== 'eth_getTransactionCount' || params[1] !== 'latest') return undefined
      looks++
      if (looks === 3) chain.mine()
      return looks < 3 ? { result: '0x1' } : undefined
    }
    expect((await own.pay(own.sign())).kind).toBe('confirmed')
    expect(own.heard('nonce-used-by-others')).toEqual([])
    expect(own.rows()).toMatchObject([{ nonce: 0, state: 'mined' }])
  })
})

describe.concurrent('an authorization that an external transaction used', () => {
  test('an external settlement before our transaction, and after its request, pays', async () => {
    await using own = await scripted()
    const transfer = own.sign()
    let external: string | undefined
    own.node.onSend = () => {
      external ??= own.chain.settleExternally(transfer)
      return 'include'
    }
    expect(await own.pay(transfer)).toMatchObject({
      kind: 'confirmed',
      payment: { transaction: external },
    })
    expect(own.rows()).toMatchObject([{ state: 'failed' }])
    expect(own.heard('payment-settled-externally')).toHaveLength(1)
  })

  test("an external settlement before its request by the chain's clock does not pay", async () => {
    await using own = await scripted()
    const { chain, node } = own
    const transfer = own.sign()
    node.onSend = () => {
      chain.seconds -= 60n
      chain.settleExternally(transfer)
      chain.seconds += 60n
      return 'include'
    }
    const outcome = await own.pay(transfer)
    expect(outcome).toMatchObject({ kind: 'dead', reason: usedReason })
    // A reorganisation may remove it.
    expect(await own.stateOf(transfer)).toBe('reverted')
  })

  test('an authorization that was used without a transfer ends as used', async () => {
    await using own = await scripted()
    const transfer = own.sign()
    own.node.onSend = () => {
      own.chain.cancel(transfer)
      return 'include'
    }
    expect(await own.pay(transfer)).toMatchObject({ kind: 'dead', reason: usedReason })
    expect(own.rows()).toMatchObject([{ state: 'failed' }])
    expect(await own.stateOf(transfer)).toBe('reverted')
  })

  test('an authorization that was used before anything is sent is refused, and nothing is written', async () => {
    await using own = await scripted()
    const transfer = own.sign()
    own.chain.settleExternally(transfer)
    expect(await own.pay(transfer)).toMatchObject({ kind: 'refused', reason: usedReason })
    expect(await own.settlement.find(transfer)).toBeUndefined()
    expect(own.node.sends).toEqual([])
  })

  test('an external settlement of another amount with the same nonce does not pay', async () => {
    await using own = await scripted()
    const transfer = own.sign()
    const other = own.sign({ nonce: transfer.nonce, amountAtomic: transfer.amountAtomic - 1n })
    own.node.onSend = () => {
      own.chain.settleExternally(other)
      return 'include'
    }
    expect(await own.pay(transfer)).toMatchObject({ kind: 'dead', reason: usedReason })
  })

  test('attack: an equal transfer beside the use of the nonce, in one transaction, does not pay', async () => {
    await using own = await scripted()
    const transfer = own.sign()
    const used = own.sign({ nonce: transfer.nonce, amountAtomic: 1n })
    // It has paid for something else.
    const equal = own.sign()
    own.node.onSend = () => {
      own.chain.settleExternally(equal, used)
      return 'include'
    }
    expect(await own.pay(transfer)).toMatchObject({ kind: 'dead', reason: usedReason })
  })
})

describe.concurrent('money that is known', () => {
  test('attack: another credential of the same money does not join its payment', async () => {
    await using own = await scripted()
    own.node.onSend = () => 'keep'
    const transfer = own.sign()
    const credentialHash = 'a'.repeat(64)
    await own.begin(transfer, { credentialHash })
    const other = own.pay(transfer, { credentialHash: 'b'.repeat(64) })
    const same = own.pay(transfer, { credentialHash })
    own.chain.mine()
    expect((await same).kind).toBe('confirmed')
    expect(await other).toMatchObject({ kind: 'refused', reason: usedReason })
  })
})

describe.concurrent('the time of an authorization', () => {
  test('an authorization that has expired by our clock alone stays open', async () => {
    await using own = await scripted()
    const { chain, clock } = own
    const transfer = own.sign()
    chain.failing.add(transfer.nonce)
    await own.pay(transfer)
    clock.ms += 400_000
    expect((await own.pay(transfer)).kind).toBe('reverted')
    expect(await own.stateOf(transfer)).toBe('reverted')
    chain.seconds += 400n
    chain.mine([])
    own.bury()
    expect(await own.pay(transfer)).toMatchObject({ kind: 'dead', reason: overReason })
    expect(await own.payment(transfer)).toMatchObject({ state: 'expired', nonceUsed: false })
    expect(own.node.sends).toHaveLength(1)
  })

  test('an authorization is valid in a block of its last second', async () => {
    await using own = await scripted()
    const { chain, clock } = own
    const transfer = own.sign()
    chain.failing.add(transfer.nonce)
    await own.pay(transfer)
    clock.ms += 400_000
    chain.seconds = transfer.validBefore
    chain.mine([])
    own.bury()
    expect((await own.pay(transfer)).kind).toBe('reverted')
    chain.seconds += 1n
    chain.mine([])
    own.bury()
    expect((await own.pay(transfer)).kind).toBe('dead')
  })

  test('an authorization that has expired on the chain ends a payment whose transaction is still in progress', async () => {
    await using own = await scripted({ settlement: { checkMs: 10 } })
    const { chain, clock } = own
    own.node.onSend = () => 'keep'
    const transfer = own.sign()
    await own.begin(transfer)
    clock.ms += 400_000
    await own.checked()
    expect(await own.stateOf(transfer)).toBe('broadcast')
    chain.seconds += 400n
    chain.mine([])
    own.bury()
    await own.reaches(transfer, 'expired')
    expect((await own.payment(transfer)).nonceUsed).toBe(false)
  })

  /** What was sent expires on one fork. A reorganisation removes these blocks, and the bytes are mined. */
  async function leap(own: Scripted, expire: (transfer: Transfer) => Promise<void>) {
    const { chain, clock, node } = own
    node.onSend = () => 'keep'
    const transfer = own.sign()
    await own.begin(transfer)
    const { seconds } = chain
    const { number } = chain.newest()
    clock.ms += 400_000
    chain.seconds += 400n
    chain.mine([])
    await expire(transfer)
    chain.drop(chain.newest().number - number)
    chain.seconds = seconds
    chain.mine()
    await own.reaches(transfer, 'confirmed')
    const { transaction } = await own.payment(transfer)
    expect(chain.find(transaction)?.transaction.success).toBe(true)
    expect(await own.settlement.beginDelivery((await own.payment(transfer)).id)).toBeDefined()
  }

  test('error: a block after its end that a reorganisation can remove does not end a payment that was sent', async () => {
    await using own = await scripted({ settlement: { checkMs: 10 } })
    await leap(own, async (transfer) => {
      for (let depth = 1; depth < own.network.reorgDepth; depth++) own.chain.mine([])
      await own.checked()
      expect(await own.stateOf(transfer)).toBe('broadcast')
      // The buyer must not sign a second payment.
      expect((await own.pay(transfer, {}, 10)).kind).toBe('pending')
    })
  })

  test('error: a payment that has expired is confirmed when a deeper reorganisation mines its transaction', async () => {
    await using own = await scripted({ settlement: { checkMs: 10 } })
    await leap(own, async (transfer) => {
      own.bury()
      await own.reaches(transfer, 'expired')
    })
  })

  test('a mined payment that waits for confirmations beyond its time stays open, and is paid once', async () => {
    const network = { confirmations: 6, reorgDepth: 3 }
    await using own = await scripted({ network, settlement: { checkMs: 10 } })
    const { chain, clock, node } = own
    const transfer = own.sign()
    await own.begin(transfer)
    clock.ms += 400_000
    chain.seconds += 400n
    chain.mine([])
    own.bury()
    await own.checked()
    expect(await own.stateOf(transfer)).toBe('broadcast')
    chain.mine([])
    await own.reaches(transfer, 'confirmed')
    expect(await own.payment(transfer)).toMatchObject({ transaction: node.sends[0]?.hash })
  })

  test('error: a second node that does not answer keeps an expired payment open for ten minutes', async () => {
    await using own = await scripted({ nodes: 2 })
    const { chain, clock, second } = own
    const transfer = own.sign()
    chain.failing.add(transfer.nonce)
    await own.pay(transfer)
    second.answer = () => new Response('', { status: 503 })
    const pass = (seconds: number) => {
      clock.ms += seconds * 1_000
      chain.seconds += BigInt(seconds)
      own.bury()
    }
    pass(300 + 600)
    expect((await own.pay(transfer)).kind).toBe('reverted')
    pass(1)
    expect((await own.pay(transfer)).kind).toBe('dead')
  })
})

describe.concurrent('a hidden receipt', () => {
  // Whether the account nonce is used is read when the bytes are sent again.
  const again = { settlement: { resendMs: 25 } }

  test('a receipt that the only node hides leaves the payment open until it is shown', async () => {
    await using own = await scripted(again)
    const { node } = own
    node.answer = hiding
    const transfer = own.sign()
    expect((await own.pay(transfer)).kind).toBe('reverted')
    expect(await own.stateOf(transfer)).toBe('reverted')
    node.answer = undefined
    expect(await own.pay(transfer)).toMatchObject({
      kind: 'confirmed',
      payment: { transaction: node.sends[0]?.hash },
    })
    expect(new Set(node.sends.map(({ hash }) => hash)).size).toBe(1)
  })

  test('a receipt that one node hides is found at the second node', async () => {
    await using own = await scripted({ ...again, nodes: 2 })
    const { node } = own
    node.answer = hiding
    const transfer = own.sign()
    expect(await own.pay(transfer)).toMatchObject({
      kind: 'confirmed',
      payment: { transaction: node.sends[0]?.hash },
    })
  })

  test('a hidden receipt keeps a payment open for a day after its expiry', async () => {
    await using own = await scripted(again)
    const { node, chain, clock } = own
    node.answer = hiding
    const transfer = own.sign()
    await own.pay(transfer)
    const later = async (seconds: number) => {
      clock.ms += seconds * 1_000
      chain.seconds += BigInt(seconds)
      chain.mine([])
      return (await own.pay(transfer)).kind
    }
    expect(await later(80_000)).toBe('reverted')
    expect(await later(7_000)).toBe('dead')
  })
})

describe.concurrent('nodes that disagree', () => {
  test('nodes that disagree about the time leave a payment open until the second one agrees', async () => {
    await using own = await scripted({ nodes: 2 })
    const { chain, clock, second } = own
    const transfer = own.sign()
    chain.failing.add(transfer.nonce)
    await own.pay(transfer)
    clock.ms += 400_000
    chain.seconds += 400n
    chain.mine([])
    own.bury()
    // It has a block fewer above the end.
    second.answer = lagging(chain, second)
    expect((await own.pay(transfer)).kind).toBe('reverted')
    expect(await own.stateOf(transfer)).toBe('reverted')
    second.answer = undefined
    expect((await own.pay(transfer)).kind).toBe('dead')
  })

  test('nodes that disagree about a transfer do not confirm it twice', async () => {
    await using own = await scripted({ nodes: 2 })
    const { second } = own
    const outcome = await own.pay(own.sign())
    if (outcome.kind !== 'confirmed') throw new Error(outcome.kind)
    expect(await own.settlement.confirmTwice(outcome.payment)).toBe(true)
    second.answer = (call) => {
      const reply = second.ask(call)
      if (call.method !== 'eth_getTransactionReceipt' || !('result' in reply)) return undefined
      return { result: { ...(reply.result as object), logs: [] } }
    }
    expect(await own.settlement.confirmTwice(outcome.payment)).toBe(false)
    expect(own.heard('settlement-disputed')).toHaveLength(1)
  })

  test('an amount above the limit is not sent while the second node does not answer', async () => {
    await using own = await scripted({
      nodes: 2,
      settlement: { confirmTwiceAbove: () => 4_999n, checkMs: 10 },
    })
    const { second } = own
    expect((await own.pay(own.sign({ amountAtomic: 5_000n }))).kind).toBe('confirmed')
    second.answer = () => new Response('', { status: 503 })
    await own.checked()
    expect((await own.pay(own.sign({ amountAtomic: 5_000n }))).kind).toBe('unavailable')
    expect((await own.pay(own.sign({ amountAtomic: 4_999n }))).kind).toBe('confirmed')
    second.answer = undefined
    await own.checked()
    expect((await own.pay(own.sign({ amountAtomic: 5_000n }))).kind).toBe('confirmed')
  })
})
