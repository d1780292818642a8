import { describe, expect, test } from 'bun:test'
import type { Ledger } from '../../db/Ledger'
import { account } from '../../src/demo/accounts'
import * as Crypto from '../../src/protocol/Crypto'
import { relayer, type Scripted, scripted } from '../harness/scripted'
import { errorOf, hiding } from '../harness/scripted-node'
import { jobOf, purposeOf, until } from '../harness/settlement'
import { isPostgres } from '../harness/test-ledger'

/** Both clocks pass the expiry of every authorization so far. */
function pass({ chain, clock, bury }: Scripted, seconds = 400): void {
  clock.ms += seconds * 1_000
  chain.seconds += BigInt(seconds)
  chain.mine([])
  bury()
}

/** A payment that was sent, and whose bytes the node lost. */
async function lose(own: Scripted) {
  own.node.onSend = () => 'lose'
  const transfer = own.sign()
  await own.begin(transfer)
  await own.crash()
  own.node.onSend = () => 'include'
  return transfer
}

const hashes = ({ node }: Scripted) => new Set(node.sends.map(({ hash }) => hash)).size

describe.concurrent('a start', () => {
  test('a start sends the same bytes again for a payment that was sent and is not included', async () => {
    await using own = await scripted()
    const transfer = await lose(own)
    await own.restart()
    await own.reaches(transfer, 'confirmed')
    expect(hashes(own)).toBe(1)
    expect(own.rows()).toMatchObject([{ nonce: 0, state: 'mined' }])
  })

  test('a start confirms a payment that was included meanwhile', async () => {
    await using own = await scripted()
    const transfer = await lose(own)
    own.chain.include(own.node.sends[0]?.raw ?? '0x')
    await own.restart()
    await own.reaches(transfer, 'confirmed')
    expect(hashes(own)).toBe(1)
    expect(own.rows()).toMatchObject([{ nonce: 0, state: 'mined' }])
  })

  test('a start sends a payment again whose account nonce was used meanwhile', async () => {
    await using own = await scripted()
    const transfer = await lose(own)
    own.chain.useNonce(relayer)
    await own.restart()
    await own.reaches(transfer, 'confirmed')
    expect(own.rows()).toMatchObject([
      { nonce: 0, state: 'replaced' },
      { nonce: 1, state: 'mined' },
    ])
  })

  test('a start gives a new payment the account nonce above those in progress', async () => {
    await using own = await scripted()
    const lost = await lose(own)
    own.node.onSend = () => 'keep'
    await own.restart()
    const transfer = own.sign({ from: 2 })
    await own.begin(transfer)
    expect(own.rows()).toMatchObject([{ nonce: 0 }, { nonce: 1 }])
    own.chain.mine()
    await own.reaches(transfer, 'confirmed')
    await own.reaches(lost, 'confirmed')
  })

  // With several gateways nothing is signed for an account before what is open there is recovered.
  test.skipIf(isPostgres)(
    'a payment before the recovery of a start gets the account nonce above those in progress',
    async () => {
      await using own = await scripted()
      await lose(own)
      const settlement = await own.start()
      await settlement.ready
      const transfer = own.sign({ from: 2 })
      const terms = { receivedAt: own.clock.ms, isKeySigned: true }
      const paying = settlement.settle({ transfer, purpose: purposeOf(), ...terms }, 120_000)
      await until(() => own.rows().length === 2)
      await settlement.stop(0)
      await paying
      await settlement.leave()
      expect(own.rows()).toMatchObject([{ nonce: 0 }, { nonce: 1 }])
    },
  )

  test('a start ends a payment that has expired and was never included', async () => {
    await using own = await scripted()
    const transfer = await lose(own)
    own.node.onSend = () => 'lose'
    pass(own)
    await own.restart({ checkMs: 10 })
    await own.reaches(transfer, 'expired')
    expect((await own.payment(transfer)).nonceUsed).toBe(false)
  })

  test('a start confirms a reverted payment whose own transaction paid after all', async () => {
    await using own = await scripted({ settlement: { resendMs: 25 } })
    own.node.answer = hiding
    const transfer = own.sign()
    expect((await own.pay(transfer)).kind).toBe('reverted')
    // Its receipt is enough: the logs of the chain need not be searched.
    own.node.answer = ({ method }) =>
      method === 'eth_getLogs' ? errorOf('logs are not searched here') : undefined
    await own.restart()
    expect(await own.stateOf(transfer)).toBe('confirmed')
    expect(hashes(own)).toBe(1)
  })

  test('a start confirms a reverted payment that an external transaction settled meanwhile', async () => {
    await using own = await scripted()
    const transfer = own.sign()
    own.chain.failing.add(transfer.nonce)
    await own.pay(transfer)
    await own.crash()
    const transaction = own.chain.settleExternally(transfer)
    await own.restart()
    expect(await own.payment(transfer)).toMatchObject({ state: 'confirmed', transaction })
  })

  test('a start keeps a reverted payment that can still pay, and ends one that cannot', async () => {
    await using own = await scripted()
    const transfer = own.sign()
    own.chain.failing.add(transfer.nonce)
    await own.pay(transfer)
    await own.restart()
    expect(await own.stateOf(transfer)).toBe('reverted')
    expect(own.node.sends).toHaveLength(1)
    await own.crash()
    pass(own)
    await own.restart()
    expect(await own.stateOf(transfer)).toBe('expired')
  })

  test('a start sends nothing for payments that have ended', async () => {
    await using own = await scripted()
    const [paid, used] = [own.sign(), own.sign({ from: 2 })]
    await own.pay(paid)
    own.node.onSend = () => {
      own.chain.cancel(used)
      return 'include'
    }
    await own.pay(used)
    const before = own.rows()
    await own.restart()
    expect(await Promise.all([paid, used].map(own.stateOf))).toEqual(['confirmed', 'reverted'])
    // A transaction of the start would have been sent before this one.
    expect((await own.pay(own.sign({ from: 3 }))).kind).toBe('confirmed')
    expect(own.rows().slice(0, -1)).toEqual(before)
    expect(own.node.sends).toHaveLength(3)
    // A reorganisation can no longer remove what used it.
    pass(own)
    await own.restart()
    expect(await own.payment(used)).toMatchObject({ state: 'expired', nonceUsed: true })
  })

  test('a start reverts a confirmation whose block the chain does not have, and sends the same bytes', async () => {
    await using own = await scripted()
    const transfer = own.sign()
    await own.pay(transfer)
    await own.crash()
    own.chain.drop(1)
    own.chain.mine([])
    own.node.onSend = () => 'keep'
    await own.restart()
    expect(await own.stateOf(transfer)).toBe('broadcast')
    await until(() => own.chain.pool.length > 0)
    own.chain.mine()
    await own.reaches(transfer, 'confirmed')
    expect(own.heard('payment-reorganised')).toHaveLength(1)
    expect(hashes(own)).toBe(1)
    expect((await own.payment(transfer)).blockNumber).toBe(1_002n)
  })

  test('a start sends the bytes of a key that is no longer configured, and confirms their payment', async () => {
    await using own = await scripted()
    const transfer = await lose(own)
    const relayerKeys = [Crypto.bytes(account(6).privateKey)]
    await own.restart({ relayerKeys, checkMs: 10 })
    await own.reaches(transfer, 'confirmed')
    expect(hashes(own)).toBe(1)
  })

  test('a start sends the same bytes of a job again', async () => {
    await using own = await scripted()
    own.node.onSend = () => 'lose'
    expect((await own.settlement.run(jobOf(own.network), { waitMs: 0 })).kind).toBe('pending')
    await own.crash()
    own.node.onSend = () => 'include'
    await own.restart()
    await until(async () => (await own.settlement.job('refund:1'))?.state === 'confirmed')
    expect(hashes(own)).toBe(1)
  })
})

describe.concurrent('a reorganisation', () => {
  const watching = { settlement: { checkMs: 10 } }

  test('a reorganisation reverts a confirmation, and the same bytes pay in another block', async () => {
    await using own = await scripted(watching)
    const { chain, node } = own
    const transfer = own.sign()
    await own.pay(transfer)
    node.onSend = () => 'keep'
    chain.drop(1)
    chain.mine([])
    await own.reaches(transfer, 'broadcast')
    // A server shows the change to others before its answer is here.
    await until(() => own.heard('payment-reorganised').length > 0)
    await until(() => chain.pool.length > 0)
    chain.mine()
    await own.reaches(transfer, 'confirmed')
    expect(hashes(own)).toBe(1)
    expect((await own.payment(transfer)).blockNumber).toBe(1_002n)
  })

  test('a transaction that a reorganisation removes before its confirmations is open until its next block', async () => {
    await using own = await scripted({ network: { confirmations: 2 } })
    const { chain, node } = own
    const inFlight = () => own.settlement.status()[0]?.relayers[0]?.inFlight
    const transfer = own.sign()
    await own.begin(transfer)
    await until(() => inFlight() === 0)
    node.onSend = () => 'keep'
    chain.drop(1)
    chain.mine([])
    chain.mine([])
    await until(() => chain.pool.length > 0)
    expect(inFlight()).toBe(1)
    chain.mine()
    chain.mine([])
    await own.reaches(transfer, 'confirmed')
    expect(inFlight()).toBe(0)
  })

  for (const isBusy of [false, true])
    test(`a reorganisation that no block shows is found by the account nonce, ${isBusy ? 'with' : 'without'} open transactions`, async () => {
      await using own = await scripted(watching)
      const { chain, node } = own
      const lost = [own.sign(), own.sign({ from: 2 })]
      for (const transfer of lost) await own.pay(transfer)
      const hashesOfLost = own.rows().map(({ hash }) => hash)
      const open = own.sign({ from: 3 })
      if (isBusy) {
        node.onSend = () => 'keep'
        await own.begin(open)
      }
      const shown = new Map(
        [1_001, 1_002].map((number) => {
          const params = [`0x${number.toString(16)}`, false]
          return [params[0], node.ask({ method: 'eth_getBlockByNumber', params })]
        }),
      )
      // For old blocks the node asks a replica that has not heard of the reorganisation.
      node.answer = ({ method, params }) =>
        method === 'eth_getBlockByNumber' ? shown.get(params[0] as string) : undefined
      chain.drop(2)
      for (let blocks = 3; blocks > 0; blocks--) chain.mine([])
      node.onSend = () => 'include'
      await until(() => hashesOfLost.every((hash) => chain.find(hash)))
      for (const transfer of lost) await own.reaches(transfer, 'confirmed')
      if (isBusy) await own.reaches(open, 'confirmed')
      expect(own.heard('payment-reorganised').length).toBeGreaterThanOrEqual(2)
      expect(own.rows().every(({ kind }) => kind === 'payment')).toBe(true)
    })

  test('error: a low account nonce reopens nothing that is deeper than a reorganisation', async () => {
    await using own = await scripted({ ...watching, network: { reorgDepth: 5 } })
    const { chain, node } = own
    const transfer = own.sign()
    await own.pay(transfer)
    for (let blocks = 20; blocks > 0; blocks--) chain.mine([])
    await own.checked()
    // The count of this node is wrong, and it has pruned the receipt.
    node.answer = ({ method }) => {
      if (method === 'eth_getTransactionCount') return { result: '0x0' }
      return method === 'eth_getTransactionReceipt' ? { result: null } : undefined
    }
    await until(() => own.heard('nonce-gap').length > 0)
    await own.checked()
    expect(own.heard('transaction-reorganised')).toHaveLength(0)
    expect(await own.stateOf(transfer)).toBe('confirmed')
  })

  test('a start does not use an account nonce again whose block the node does not have', async () => {
    await using own = await scripted(watching)
    const { chain } = own
    const [lost, next] = [own.sign(), own.sign({ from: 2 })]
    await own.pay(lost)
    const [first] = own.rows()
    await own.crash()
    chain.drop(1)
    // One check only, which cannot tell a reorganisation from a node that lags behind.
    await own.restart({ checkMs: 3_600_000 })
    await own.begin(next)
    await own.restart()
    await until(() => chain.find(first?.hash ?? '') !== undefined)
    for (const transfer of [lost, next]) await own.reaches(transfer, 'confirmed')
    expect(own.rows()).toMatchObject([
      { hash: first?.hash, nonce: 0, state: 'mined' },
      { nonce: 1, state: 'mined' },
    ])
  })

  for (const kind of ['payment', 'job'])
    test(`a ${kind} whose transaction another one displaced is open again`, async () => {
      // No check finds the reorganisation, so the account nonce is used again.
      const blind = (ledger: Ledger): Ledger => {
        const none = { includedFrom: async () => [], includedAt: async () => [] }
        return { ...ledger, transactions: { ...ledger.transactions, ...none } }
      }
      await using own = await scripted({ ...watching, ledger: blind })
      const transfer = own.sign()
      if (kind === 'payment') await own.pay(transfer)
      else await own.settlement.run(jobOf(own.network), { waitMs: 120_000 })
      const [lost] = own.rows()
      await own.crash()
      own.chain.drop(1)
      await own.restart()
      expect((await own.pay(own.sign({ from: 2 }))).kind).toBe('confirmed')
      expect(own.rows().filter(({ nonce }) => nonce === 0)).toHaveLength(2)
      if (kind === 'payment') {
        await until(async () => {
          const { state, transaction } = await own.payment(transfer)
          return state === 'confirmed' && own.chain.find(transaction) !== undefined
        })
        expect((await own.payment(transfer)).transaction).not.toBe(lost?.hash as `0x${string}`)
      } else {
        // What follows a job moves the same money, so it ends out of the reach of a reorganisation.
        await until(async () => {
          own.chain.mine([])
          return (await own.settlement.job('refund:1'))?.state === 'replaced'
        })
      }
    })

  test('a transaction that a reorganisation moves is recorded in its new block', async () => {
    await using own = await scripted(watching)
    const { chain, node } = own
    const transfer = own.sign()
    await own.pay(transfer)
    chain.drop(1)
    chain.mine([])
    chain.include(node.sends[0]?.raw ?? '0x')
    await until(async () => (await own.payment(transfer)).blockNumber === 1_002n)
    expect(await own.stateOf(transfer)).toBe('confirmed')
    expect(hashes(own)).toBe(1)
  })

  test('a reorganisation that keeps the transaction in its block changes nothing', async () => {
    await using own = await scripted(watching)
    const transfer = own.sign()
    await own.pay(transfer)
    own.chain.mine([])
    own.chain.drop(1)
    own.chain.mine([])
    await own.checked()
    expect(await own.stateOf(transfer)).toBe('confirmed')
    expect(own.heard('transaction-reorganised')).toEqual([])
  })

  test('the bytes of an external settlement that a reorganisation removes are sent again', async () => {
    await using own = await scripted(watching)
    const { chain, node } = own
    const transfer = own.sign()
    let external: string | undefined
    node.onSend = () => {
      external ??= chain.settleExternally(transfer)
      return 'include'
    }
    expect((await own.pay(transfer)).kind).toBe('confirmed')
    const raw = chain.find(external ?? '')?.transaction.raw
    // Two polls: the first one stores the bytes.
    await own.checked()
    node.onSend = (sent) => (sent.raw === raw ? 'include' : 'lose')
    chain.drop(2)
    chain.mine([])
    await until(() => own.heard('payment-reorganised').length > 0)
    await own.reaches(transfer, 'confirmed')
    expect((await own.payment(transfer)).transaction as string).toBe(external ?? '')
  })
})
