import { describe, expect, test } from 'bun:test'
import { type Hex, parseTransaction } from 'viem'
import { account } from '../../src/demo/accounts'
import { execute, mine } from '../../src/demo/chains'
import * as Crypto from '../../src/protocol/Crypto'
import * as Transfer from '../../src/protocol/Transfer'
import { nonceOf } from '../../src/refunds/Refund'
import { revert, setAutomine, snapshot } from '../harness/chains'
import { isRefund, type OwnRefunds, ownRefunds, refunder } from '../harness/own-refunds'
import { isSend } from '../harness/own-settlement'
import { until } from '../harness/settlement'
import { isPostgres } from '../harness/test-ledger'

const dayMs = 86_400_000

/** What another sender includes before ours: the call of our transaction, which is public. */
async function overtake(own: OwnRefunds, raw: Hex): Promise<Hex> {
  const { to, data } = parseTransaction(raw as `0x02${string}`)
  if (!to || !data) throw new Error('no call')
  const [receipt] = await execute(own.net.chain, [{ from: account(9).address, to, data }])
  if (receipt === undefined) throw new Error('no receipt')
  return receipt.transactionHash
}

describe.concurrent('a refund', () => {
  test('the whole payment goes back to its payer once, when its block is deep', async () => {
    await using own = await ownRefunds({ network: { reorgDepth: 8 } })
    const before = await own.held(1)
    const { id } = await own.pay()
    // Two gateways look at the same request.
    const [first] = [own.start(), own.start()]
    expect(await own.request(id)).toBe('requested')
    await until(() => first?.waitOf(id) === 'depth')
    expect(await own.held(1)).toBe(before - 5_000n)
    expect(own.jobs()).toEqual([])
    await mine(own.net.chain, 8)
    await own.untilState(id, 'refunded')
    const refund = await own.find(id)
    expect([await own.held(1), await own.held(6)]).toEqual([before, 1_000_000n - 5_000n])
    expect(own.jobs()).toMatchObject([
      { id: `repay:${id}:1`, state: 'confirmed', hash: refund?.transaction },
    ])
    // Its account has no native coin: a relayer has sent it.
    const sent = await own.net.chain.rpc('eth_getTransactionCount', [refunder.address, 'latest'])
    expect(sent).toBe('0x0')
    expect(await own.request(id)).toBe('exists')
    expect((await first?.retry(id))?.ok).toBe(false)
    expect(await own.held(1)).toBe(before)
  })

  test('a part of a payment goes back; more than it, nothing, and more than the day has are refused', async () => {
    await using own = await ownRefunds()
    own.state.perDayAtomic = 6_000n
    const [one, other] = [await own.pay(), await own.pay({ from: 2 })]
    expect(await own.request(one.id, { amountAtomic: 5_001n })).toBe('too-much')
    expect(await own.request(one.id, { amountAtomic: 0n })).toBe('too-much')
    expect(await own.request('pay_00')).toBe('not-confirmed')
    expect(await own.request(one.id, { amountAtomic: 2_000n })).toBe('requested')
    expect(await own.request(other.id)).toBe('day-spent')
    const before = await own.held(1)
    own.start()
    await own.untilState(one.id, 'refunded')
    expect((await own.held(1)) - before).toBe(2_000n)
    own.state.offsetMs = dayMs
    expect(await own.request(other.id)).toBe('requested')
    await own.untilState(other.id, 'refunded')
    expect(await own.held(6)).toBe(1_000_000n - 7_000n)
  })

  test('two refunds of an account with money for one: the other waits for more', async () => {
    await using own = await ownRefunds({ heldAtomic: 6_000n })
    const [one, other] = [await own.pay(), await own.pay({ from: 2 })]
    await own.request(one.id)
    await own.request(other.id)
    await setAutomine(own.net.chain, false)
    const refunds = own.start()
    await own.untilState(one.id, 'sent')
    await until(() => refunds.waitOf(other.id) === 'balance')
    expect(refunds.stuck()).toMatchObject([{ payments: 1, amountAtomic: 5_000n }])
    await setAutomine(own.net.chain, true)
    await mine(own.net.chain)
    await own.untilState(one.id, 'refunded')
    await own.mint(4_000n)
    own.state.offsetMs += 10_000
    await own.untilState(other.id, 'refunded')
    expect(own.jobs()).toHaveLength(2)
    expect(own.events.filter(({ event }) => event === 'refund-waiting')).toHaveLength(1)
    await until(() => refunds.stuck().length === 0)
    expect(await own.held(6)).toBe(0n)
  })

  test('a refund waits while the token blocks the payer', async () => {
    await using own = await ownRefunds({ manners: 'usdc' })
    const { id } = await own.pay()
    await own.block(1)
    await own.request(id)
    const refunds = own.start()
    await until(() => refunds.waitOf(id) === 'refused')
    expect(own.jobs()).toEqual([])
    await own.block(1, false)
    own.state.offsetMs += 60_000
    await own.untilState(id, 'refunded')
  })

  test('error: one that fails on chain is sent again only when an operator wants it', async () => {
    await using own = await ownRefunds({ manners: 'usdc' })
    const { id } = await own.pay()
    await own.request(id)
    let isBlocked = false
    own.net.tap.intercept = async (call) => {
      if (!isRefund(call) || isBlocked) return undefined
      isBlocked = true
      await own.block(1)
      return undefined
    }
    const refunds = own.start()
    await own.untilState(id, 'failed')
    await mine(own.net.chain, 4)
    await until(() => refunds.waitOf(id) === 'failed')
    await own.block(1, false)
    expect(own.events.filter(({ event }) => event === 'refund-failed')).toHaveLength(1)
    expect(own.jobs()).toMatchObject([{ id: `repay:${id}:1`, state: 'failed' }])
    expect(await own.held(6)).toBe(1_000_000n)
    expect((await refunds.retry(id)).ok).toBe(true)
    await own.untilState(id, 'refunded')
    expect(await own.held(6)).toBe(1_000_000n - 5_000n)
    expect((await refunds.retry(id)).ok).toBe(false)
  })

  for (const manners of ['usdc', 'usdg'] as const) {
    test(`attack: a reader of the mempool that is faster makes the same refund (${manners})`, async () => {
      await using own = await ownRefunds({ manners })
      const before = await own.held(1)
      const { id } = await own.pay()
      await own.request(id)
      let theirs: Hex | undefined
      own.net.tap.intercept = async (call) => {
        if (isRefund(call)) theirs ??= await overtake(own, call.params[0] as Hex)
        return undefined
      }
      own.start()
      const looks = async () => {
        await mine(own.net.chain, 1)
        return (await own.find(id))?.transaction === theirs && theirs !== undefined
      }
      await until(looks)
      expect(await own.stateOf(id)).toBe('refunded')
      // Ours found the nonce used: USDC reverts, and USDG only logs an event.
      expect(own.jobs()).toMatchObject([{ state: manners === 'usdc' ? 'failed' : 'confirmed' }])
      expect([await own.held(1), await own.held(6)]).toEqual([before, 1_000_000n - 5_000n])
    })
  }

  test('attack: a database that was restored does not pay a second time', async () => {
    await using own = await ownRefunds()
    const { id, transfer } = await own.pay()
    // What the service had sent after the backup.
    const terms = {
      ...{ ...transfer, payer: refunder.address, payee: transfer.payer, nonce: nonceOf(id) },
      validBefore: 4_000_000_000n,
    }
    const digest = Transfer.digest(terms, own.network.asset)
    const signature = Crypto.sign(digest, Crypto.bytes(refunder.privateKey))
    const call = Transfer.call({ ...terms, signature })
    const [paid] = await execute(own.net.chain, [{ from: account(9).address, ...call }])
    await mine(own.net.chain, 4)
    await own.request(id)
    own.start()
    await own.untilState(id, 'refunded')
    expect((await own.find(id))?.transaction).toBe(paid?.transactionHash)
    expect([own.jobs(), await own.held(6)]).toEqual([[], 1_000_000n - 5_000n])
  })
})

describe.concurrent('a reorganisation', () => {
  test('a payment that it removes before the refund is sent is not refunded until it is back', async () => {
    await using own = await ownRefunds({ network: { reorgDepth: 8 } })
    const fork = await snapshot(own.net.chain)
    const { id } = await own.pay()
    const refunds = own.start()
    await own.request(id)
    await until(() => refunds.waitOf(id) === 'depth')
    let isLost = true
    own.net.tap.intercept = ({ method }) =>
      isSend(method) && isLost ? { error: { code: -32603, message: 'lost' } } : undefined
    await revert(own.net.chain, fork)
    await mine(own.net.chain, 20)
    await until(() => {
      // It may have been looked at before the settlement saw the fork.
      own.state.offsetMs += 100
      return refunds.waitOf(id) === 'payment'
    })
    expect(own.jobs()).toEqual([])
    isLost = false
    await until(async () => (await own.fixture.settlement.findById(id))?.state === 'confirmed')
    await own.mint(1_000_000n)
    await mine(own.net.chain, 8)
    await own.untilState(id, 'refunded')
    expect(own.jobs()).toHaveLength(1)
  })

  test('a refund that it removes is sent again, and moves the money once', async () => {
    await using own = await ownRefunds()
    const before = await own.held(1)
    const { id } = await own.pay()
    const fork = await snapshot(own.net.chain)
    await own.request(id)
    own.start()
    await own.untilState(id, 'refunded')
    let isLost = true
    own.net.tap.intercept = ({ method }) =>
      isSend(method) && isLost ? { error: { code: -32603, message: 'lost' } } : undefined
    await revert(own.net.chain, fork)
    await mine(own.net.chain, 2)
    expect(await own.held(1)).toBe(before - 5_000n)
    await own.untilState(id, 'sent')
    isLost = false
    await own.untilState(id, 'refunded')
    expect([await own.held(1), await own.held(6)]).toEqual([before, 1_000_000n - 5_000n])
    expect(own.jobs()).toHaveLength(1)
  })
})

describe.concurrent('a crash', () => {
  for (const when of ['after the request', 'as it is sent', 'when the node has it'] as const) {
    test(`${when}, the next process makes the refund once`, async () => {
      await using own = await ownRefunds()
      const before = await own.held(1)
      const { id } = await own.pay()
      await own.request(id)
      if (when !== 'after the request') {
        const reached = Promise.withResolvers<void>()
        own.net.tap.intercept = async (call, forward) => {
          if (!isRefund(call)) return undefined
          if (when === 'when the node has it') await forward()
          reached.resolve()
          return new Response('lost', { status: 503 })
        }
        own.start()
        await reached.promise
      }
      await own.restart()
      own.net.tap.intercept = undefined
      own.start()
      await own.untilState(id, 'refunded')
      expect([await own.held(1), await own.held(6)]).toEqual([before, 1_000_000n - 5_000n])
      expect(own.jobs()).toHaveLength(1)
    })
  }
})

describe.concurrent('by itself', () => {
  const failed = { upstreamStatus: 500, redeemTokenHash: 'a'.repeat(64) }

  test('what was never delivered is refunded when its time to redeem is over, within the limit of each day', async () => {
    await using own = await ownRefunds({ network: { ethPriceUsd: 1 } })
    const { deliveries } = own.fixture.ledger
    const fail = async (id: string) => {
      await deliveries.begin(id)
      const redeemTokenHash = new Bun.CryptoHasher('sha256').update(id).digest('hex')
      await deliveries.fail(
        id,
        { ...failed, redeemTokenHash, redeemUntil: Date.now() + dayMs },
        Date.now(),
      )
    }
    const auto = { merchant: 'auto' }
    const delivered = await own.pay(auto)
    await deliveries.begin(delivered.id)
    await deliveries.deliver(delivered.id, { upstreamStatus: 200, truncated: false }, Date.now())
    const [undelivered, abandoned] = [await own.pay(auto), await own.pay(auto)]
    await fail(undelivered.id)
    const running = await own.pay(auto)
    await deliveries.begin(running.id)
    const byHand = await own.pay({ merchant: 'other' })
    await fail(byHand.id)
    const dear = await own.pay({ ...auto, amountAtomic: 9_000n })
    await fail(dear.id)
    own.state.perDayAtomic = 6_000n
    own.start()
    own.state.offsetMs = dayMs - 60_000
    await until(() => own.net.tap.calls.length > 0)
    expect(await own.fixture.ledger.refunds.open({ after: undefined, limit: 1_000 })).toEqual([])
    // Each day has room for one of them.
    own.state.offsetMs = 26 * 3_600_000
    const made = async () => {
      const all = await own.fixture.ledger.refunds.list({ before: undefined, limit: 9 })
      return all.filter(({ state }) => state === 'refunded').map(({ paymentId }) => paymentId)
    }
    await until(async () => (await made()).length === 1)
    own.state.offsetMs += dayMs
    await until(async () => (await made()).length === 2)
    expect((await made()).sort()).toEqual([undelivered.id, abandoned.id].sort())
    own.state.offsetMs += dayMs
    own.state.perDayAtomic = 100_000n
    await until(async () => (await made()).length === 3)
    expect(await made()).toContain(dear.id)
    for (const { id } of [delivered, running, byHand]) expect(await own.find(id)).toBeUndefined()
    // 5,000, 5,000 and 9,000 of the account.
    expect(await own.held(6)).toBe(1_000_000n - 19_000n)
  })

  test('attack: one whose gas costs more than its amount waits', async () => {
    await using own = await ownRefunds({ network: { ethPriceUsd: 4_000_000 } })
    const { id } = await own.pay({ merchant: 'auto' })
    own.state.offsetMs = 26 * 3_600_000
    const refunds = own.start()
    await until(() => refunds.waitOf(id) === 'gas')
    expect(own.jobs()).toEqual([])
  })

  // Rows are copied by the SQL of SQLite; the pages are those of both engines.
  const sqliteTest = test.skipIf(isPostgres)
  sqliteTest('attack: many that wait do not stop others, and are looked at in parts', async () => {
    await using own = await ownRefunds()
    const { id } = await own.pay()
    const { sql } = own.fixture
    const columns = sql.query<{ name: string }, []>('PRAGMA table_info(payments)').all()
    const copied = columns.map(({ name }) => {
      if (name === 'id') return "printf('pay_%032x', n)"
      if (name === 'nonce' || name === 'transaction_hash') return "printf('0x%064x', n)"
      return name === 'amount_atomic' ? "'1'" : name
    })
    const upTo = 'WITH RECURSIVE up (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM up WHERE n < 250)'
    const names = columns.map(({ name }) => name).join(', ')
    sql.run(`INSERT INTO payments (${names}) ${upTo} SELECT ${copied.join(', ')} FROM payments, up`)
    sql.run(
      `INSERT INTO refunds (payment_id, account, amount_atomic, reason, attempts, created_at)
       ${upTo} SELECT printf('pay_%032x', n), ?, '1', 'undelivered', 0, n FROM up`,
      [refunder.address],
    )
    await own.request(id)
    const { refunds: ledger } = own.fixture.ledger
    const pages: number[] = []
    const refunds = own.start({
      refunds: {
        ...ledger,
        async open(page) {
          const found = await ledger.open(page)
          pages.push(found.length)
          return found
        },
      },
    })
    await own.untilState(id, 'refunded')
    expect(pages.slice(0, 2)).toEqual([200, 51])
    const last = `pay_${(250).toString(16).padStart(32, '0')}`
    await until(() => refunds.waitOf(last) === 'gas' && pages.length > 4)
    expect(refunds.waitOf(id)).toBeUndefined()
  })
})
