import { describe, expect, test } from 'bun:test'
import type { Payment } from '../../db/Payment'
import { isOver } from '../../src/settlement/send/broadcast'
import { relayer, type Scripted, scripted } from '../harness/scripted'
import { errorOf } from '../harness/scripted-node'
import { jobOf, networkOf, signTransfer, until } from '../harness/settlement'
import { isPostgres } from '../harness/test-ledger'

const kinds = (outcomes: readonly { kind: string }[]) => outcomes.map(({ kind }) => kind)

/** One transaction waits for its block, so later payments collect into a batch. */
async function occupy(own: Scripted) {
  const { node } = own
  node.onSend = () => 'keep'
  const transfer = own.sign({ from: 5 })
  await own.begin(transfer)
  node.onSend = () => 'include'
  return transfer
}

/**
 * The same, for payers that are known to have no code. Others, whose code is not read in time, are
 * sent alone. Returns how many transactions that took.
 */
async function occupyKnown(own: Scripted, payers: readonly number[]): Promise<number> {
  await occupy(own)
  await Promise.all(payers.map((from) => own.pay(own.sign({ from }))))
  await occupy(own)
  return own.rows().length - 1
}

describe.concurrent('a batch', () => {
  test('a batch with a failing member pays the others, and the member is sent again alone', async () => {
    await using own = await scripted()
    const first = await occupyKnown(own, [1, 2, 3, 4])
    const transfers = [2, 3, 4].map((from) => own.sign({ from }))
    const failed = own.sign({ from: 1 })
    own.chain.failing.add(failed.nonce)
    const outcomes = await Promise.all([...transfers, failed].map((each) => own.pay(each)))
    expect(kinds(outcomes)).toEqual(Array(4).fill('confirmed'))
    const sent = own.rows().slice(first)
    expect(sent).toMatchObject([
      { nonce: first, kind: 'payment' },
      { nonce: first + 1, kind: 'batch', state: 'mined' },
      { nonce: first + 2, kind: 'payment', state: 'mined' },
    ])
    const [, batch, alone] = sent
    const stored = await Promise.all(transfers.map(own.payment))
    expect(stored.map((each) => each.transaction as string)).toEqual(Array(3).fill(batch?.hash))
    expect((await own.payment(failed)).transaction as string).toBe(alone?.hash ?? '')
  })

  test('a payer that made a batch fail shares no other', async () => {
    await using own = await scripted()
    await occupyKnown(own, [1, 2, 3])
    const failed = own.sign({ from: 1 })
    own.chain.failing.add(failed.nonce)
    await Promise.all([failed, own.sign({ from: 2 })].map((each) => own.pay(each)))
    expect(own.heard('batch-failed')).toMatchObject([{ fields: { attributed: [failed.payer] } }])
    await occupy(own)
    const again = own.sign({ from: 1 })
    const others = [2, 3].map((from) => own.sign({ from }))
    await Promise.all([again, ...others].map((each) => own.pay(each)))
    const kindOf = async (transfer: typeof again) => {
      const { transaction } = await own.payment(transfer)
      return own.rows().find(({ hash }) => hash === transaction)?.kind
    }
    expect(await kindOf(again)).toBe('payment')
    expect(await Promise.all(others.map(kindOf))).toEqual(['batch', 'batch'])
  })

  test('a batch with an authorization that is used meanwhile pays the others', async () => {
    await using own = await scripted()
    const first = await occupyKnown(own, [1, 2])
    const [used, left] = [own.sign({ from: 1 }), own.sign({ from: 2 })]
    own.node.onSend = ({ nonce }) => {
      if (nonce === first + 1) own.chain.cancel(used)
      return 'include'
    }
    const outcomes = await Promise.all([used, left].map((each) => own.pay(each)))
    expect(kinds(outcomes)).toEqual(['dead', 'confirmed'])
    expect(own.rows().slice(first)).toMatchObject([{ kind: 'payment' }, { kind: 'batch' }])
    const { transaction } = await own.payment(left)
    const batch = own
      .heard('transaction-included')
      .find(({ fields }) => fields?.transaction === transaction)
    expect(batch).toMatchObject({ fields: { success: true, paid: 1, unpaid: 1 } })
  })

  test('a batch that another program displaced is sent again as single payments', async () => {
    await using own = await scripted()
    const first = await occupyKnown(own, [1, 2])
    const transfers = [1, 2].map((from) => own.sign({ from }))
    own.node.onSend = ({ nonce }) => {
      if (nonce !== first + 1) return 'include'
      own.chain.mine()
      own.chain.useNonce(relayer)
      return 'lose'
    }
    const outcomes = await Promise.all(transfers.map((each) => own.pay(each)))
    expect(kinds(outcomes)).toEqual(['confirmed', 'confirmed'])
    expect(own.rows().slice(first)).toMatchObject([
      { nonce: first, kind: 'payment' },
      { nonce: first + 1, kind: 'batch', state: 'replaced' },
      { nonce: first + 2, kind: 'payment', state: 'mined' },
      { nonce: first + 3, kind: 'payment', state: 'mined' },
    ])
  })
})

describe.concurrent('a relayer', () => {
  // A commit to a server takes longer than the simulation: there the payment may be first.
  test.skipIf(isPostgres)(
    'a job that takes an account nonce while a payment is simulated keeps it',
    async () => {
      await using own = await scripted()
      const { node, settlement, network } = own
      let job: ReturnType<typeof settlement.run> | undefined
      node.answer = ({ method }) => {
        if (method === 'eth_call') job ??= settlement.run(jobOf(network), { waitMs: 120_000 })
        return undefined
      }
      node.onSend = () => 'keep'
      const transfer = own.sign()
      await own.begin(transfer)
      await until(() => own.rows().length === 2)
      expect(own.rows()).toMatchObject([
        { nonce: 0, kind: 'refund' },
        { nonce: 1, kind: 'payment' },
      ])
      own.chain.mine()
      await own.reaches(transfer, 'confirmed')
      expect((await job)?.kind).toBe('confirmed')
    },
  )

  test('a batch can pay until its last member has expired', () => {
    const network = networkOf('http://127.0.0.1')
    const members = [7n, 9n, 8n].map((validBefore) => {
      const payment = { transfer: signTransfer(network, { validBefore }) } as Payment
      return { payment }
    })
    expect(isOver(members, 9_999)).toBe(false)
    expect(isOver(members, 10_000)).toBe(true)
    expect(isOver([], 10_000)).toBe(false)
  })
})

describe.concurrent('a transaction that stays out', () => {
  const soon = { network: { replaceAfterSeconds: 0.02 } }

  test('a transaction that is not included is replaced at its nonce with an eighth more', async () => {
    await using own = await scripted(soon)
    const { node } = own
    node.onSend = ({ hash }) => (hash === node.sends[0]?.hash ? 'keep' : 'include')
    const transfer = own.sign()
    const outcome = await own.pay(transfer)
    expect(outcome).toMatchObject({ kind: 'confirmed' })
    const [first, second, ...more] = own.rows()
    if (!first || !second) throw new Error('it was not replaced')
    expect(more).toEqual([])
    expect([first, second]).toMatchObject([
      { nonce: 0, kind: 'payment', state: 'replaced' },
      { nonce: 0, kind: 'payment', state: 'mined' },
    ])
    expect(second.maxFeeWei).toBeGreaterThanOrEqual((first.maxFeeWei * 9n) / 8n)
    expect((await own.payment(transfer)).transaction as string).toBe(second.hash)
  })

  test('a transaction pays when the chain includes it after its replacement', async () => {
    await using own = await scripted(soon)
    const { node, chain } = own
    node.onSend = ({ hash }) => {
      const [first] = node.sends
      if (!first || hash === first.hash) return 'lose'
      chain.include(first.raw)
      return errorOf('nonce too low')
    }
    const transfer = own.sign()
    expect((await own.pay(transfer)).kind).toBe('confirmed')
    expect((await own.payment(transfer)).transaction).toBe(node.sends[0]?.hash ?? '0x')
    expect(own.rows()).toMatchObject([{ state: 'mined' }, { state: 'replaced' }])
  })

  test('a transaction at the fee cap pauses its relayer until it is included', async () => {
    const capped = { replaceAfterSeconds: 0.02, feeCapWei: 3_000_000_000n }
    await using own = await scripted({ network: capped })
    const { chain, node } = own
    const transfer = await occupy(own)
    await until(() => own.heard('relayer-paused').length > 0)
    expect((await own.pay(own.sign())).kind).toBe('unavailable')
    expect(new Set(node.sends.map(({ hash }) => hash)).size).toBe(1)
    chain.mine()
    await own.reaches(transfer, 'confirmed')
    expect((await own.pay(own.sign())).kind).toBe('confirmed')
  })

  test('a transaction is cancelled at its nonce when it has expired by our clock', async () => {
    await using own = await scripted(soon)
    const { chain, clock, node } = own
    node.onSend = ({ to }) => (to === relayer ? 'include' : 'lose')
    const transfer = own.sign()
    const first = own.pay(transfer)
    await until(() => node.sends.length > 0)
    clock.ms += 400_000
    // The chain's clock has not reached that time: only our transaction is too old.
    expect((await first).kind).toBe('reverted')
    expect(own.rows().at(-1)).toMatchObject({ nonce: 0, kind: 'cancel', state: 'mined' })
    chain.seconds += 400n
    chain.mine([])
    own.bury()
    expect((await own.pay(transfer)).kind).toBe('dead')
    expect(own.rows().filter(({ nonce }) => nonce > 0)).toEqual([])
  })
})

describe.concurrent('the answer of a node to a send', () => {
  const included: [name: string, message: string][] = [
    ['already known', 'already known'],
    ['nonce too low', 'nonce too low: next nonce 1, tx nonce 0'],
    ['replacement underpriced', 'replacement transaction underpriced'],
  ]
  for (const [name, message] of included)
    test(`"${name}" for bytes that were included sends nothing else`, async () => {
      await using own = await scripted()
      own.node.onSend = ({ raw }) => {
        own.chain.include(raw)
        return errorOf(message)
      }
      expect((await own.pay(own.sign())).kind).toBe('confirmed')
      expect(own.rows()).toMatchObject([{ nonce: 0, state: 'mined' }])
      expect(own.node.sends).toHaveLength(1)
      expect(own.heard('relayer-paused')).toEqual([])
    })

  test('"already known" does not pause the relayer', async () => {
    await using own = await scripted()
    const { node, chain } = own
    node.onSend = ({ raw }) => {
      chain.keep(raw)
      return errorOf('already known')
    }
    const transfer = own.sign()
    await own.begin(transfer)
    node.onSend = () => 'include'
    expect((await own.pay(own.sign({ from: 2 }))).kind).toBe('confirmed')
    await own.reaches(transfer, 'confirmed')
    expect(own.heard('relayer-paused')).toEqual([])
  })

  test('"insufficient funds" pauses the relayer, and the same bytes are sent again', async () => {
    await using own = await scripted()
    const { node } = own
    let isPoor = true
    node.onSend = () => (isPoor ? errorOf('insufficient funds for gas * price + value') : 'include')
    const transfer = own.sign()
    await own.begin(transfer)
    await until(() => own.heard('relayer-paused').length > 0)
    expect(own.heard('relayer-paused')).toMatchObject([
      { fields: { reason: 'the relayer cannot pay for gas' } },
    ])
    expect((await own.pay(own.sign({ from: 2 }))).kind).toBe('unavailable')
    isPoor = false
    await own.reaches(transfer, 'confirmed')
    expect(new Set(node.sends.map(({ hash }) => hash)).size).toBe(1)
    expect((await own.pay(own.sign({ from: 2 }))).kind).toBe('confirmed')
  })

  test('"fee too low" is followed by a higher bid at once', async () => {
    await using own = await scripted()
    const { node } = own
    node.onSend = ({ hash }) =>
      hash === node.sends[0]?.hash ? errorOf('transaction underpriced: tip too low') : 'include'
    expect((await own.pay(own.sign())).kind).toBe('confirmed')
    expect(own.rows()).toMatchObject([
      { nonce: 0, state: 'replaced' },
      { nonce: 0, state: 'mined' },
    ])
  })

  test('an unknown error message is followed by the same bytes', async () => {
    await using own = await scripted()
    const { node } = own
    node.onSend = () => (node.sends.length < 2 ? errorOf('something odd') : 'include')
    expect((await own.pay(own.sign())).kind).toBe('confirmed')
    expect(node.sends).toHaveLength(2)
    expect(new Set(node.sends.map(({ hash }) => hash)).size).toBe(1)
    expect(own.heard('relayer-paused')).toEqual([])
  })
})
