import { Database } from 'bun:sqlite'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import { account } from '../../src/demo/accounts'
import { mine, request } from '../../src/demo/chains'
import { setAutomine } from '../harness/chains'
import { newState, removeStates, startWallet, type WalletOptions } from '../harness/mcp-wallet'
import { payee } from '../harness/shop'
import { answering, body, costOf, type ModelShop, startModels, usage } from '../harness/upto-shop'

/** What an agent is told by a real gateway on real chains, and what counts against its limits. */

const base = 'eip155:8453'
let shop: ModelShop
beforeAll(async () => {
  shop = await startModels({
    adjust: (config) => ({ ...config, service: { ...config.service, settleWaitSeconds: 1 } }),
  })
})
afterAll(async () => {
  await shop?.stop()
  removeStates()
})
beforeEach(() => shop.clear())

const wallet = (options: Partial<WalletOptions> = {}) =>
  startWallet({ url: shop.url, network: base, rpc: shop.chain().url, ...options })
const paid = () => shop.balance(base, payee)
const iso = /\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ/.source

describe('a call that is not served', () => {
  test('a payment whose upstream failed is kept and used by the next same call, also after a restart', async () => {
    const state = newState()
    const before = await paid()
    shop.upstream.script = answering('{}', 500)
    const first = wallet({ state })
    const failed = await first.call('shop-item')
    expect(failed.isError).toBe(true)
    expect(failed.text).toMatch(
      /^The upstream failed after the payment of 0\.005000 USDC\. The gateway says "upstream-failed: .+"\. The payment is kept: call the same tool with the same arguments until \d{4}-.+Z, and it costs nothing more\.$/,
    )
    expect((await paid()) - before).toBe(5000n)
    first.spending.close()
    shop.upstream.script = undefined
    const second = wallet({ state, perDay: '0.005' })
    expect(second.spending.unfinished()).toMatchObject([{ state: 'redeemable', tool: 'shop-item' }])
    const other = await second.call('shop-other')
    expect(other.text).toContain('Today 0.005 of at most 0.005 USD are spent')
    const served = await second.call('shop-item')
    expect(served).toMatchObject({ isError: false })
    expect(served.text).toContain('{"ok":true}\n[turnpike] Cost: 0.005000 USDC on eip155:8453')
    expect((await paid()) - before).toBe(5000n)
    expect(second.spending.unfinished()).toEqual([])
    expect(second.spending.today()).toEqual({ spentMicros: 5000n, payments: 1 })
  })

  test('error: a wallet without money is named with the network, and no second payment is signed', async () => {
    const poor = account(8)
    const { call, spending } = wallet({ buyer: poor })
    const refused = await call('shop-item')
    expect(refused.isError).toBe(true)
    expect(refused.text).toMatch(
      new RegExp(
        `^The wallet ${poor.address} holds less than 0\\.005000 USDC on eip155:8453\\. Ask the user to ` +
          'send it some\\. The gateway says "verification-failed, ' +
          'invalid_exact_evm_insufficient_balance: .+"\\. Nothing was delivered\\. A payment of ' +
          `0\\.005000 USDC on eip155:8453 is signed, valid until ${iso}\\. Until then a call with the ` +
          'same arguments presents the same payment\\. After that a new one is signed\\.$',
      ),
    )
    const again = await call('shop-item')
    expect(again.text).toBe(refused.text)
    expect(spending.today()).toEqual({ spentMicros: 5000n, payments: 1 })
    // The payment that is already signed pays as soon as there is money.
    await shop.setBalance(poor.address, 5000n)
    const served = await call('shop-item')
    expect(served).toMatchObject({ isError: false })
    expect(spending.today()).toEqual({ spentMicros: 5000n, payments: 1 })
  })

  test('a wallet with one asset pays in it, where another one is offered first', async () => {
    const { address, privateKey } = await shop.wallet(5000n)
    const buyer = { ...account(8), address, privateKey }
    const { call } = wallet({ buyer, network: undefined })
    const served = await call('shop-item')
    expect(served).toMatchObject({ isError: false })
    expect(served.text).toContain('Cost: 0.005000 USDC on eip155:8453')
  })

  test('error: a network that the gateway does not take is named', async () => {
    const refused = await wallet({ network: 'eip155:84532' }).call('model-chat', {
      body: JSON.parse(body),
    })
    expect(refused.text).toBe(
      'The gateway takes payment on eip155:4663, eip155:8453, and this wallet pays only on ' +
        'eip155:84532. Nothing was paid. Choose another tool, or ask the user to change --network.',
    )
  })

  test('error: wrong arguments are named before a payment, so that the model corrects them', async () => {
    const { call, spending } = wallet()
    expect((await call('shop-form', { symbol: 'TOOLONG' })).text).toMatch(
      /^The arguments are wrong, so nothing was paid\. Correct them: symbol: .+\.$/,
    )
    const unknown = await call('shop-form', { symbl: 'X' })
    expect(unknown).toMatchObject({ isError: true })
    expect(unknown.text).toContain('"symbl"')
    expect(unknown.text).toEndWith('[turnpike] Nothing was paid.')
    expect((await call('no-such-tool')).text).toContain('There is no such tool.')
    expect(spending.today().payments).toBe(0)
  })

  test('a pending settlement is presented again with the same payment until it is confirmed', async () => {
    const chain = shop.chain()
    const before = await paid()
    await setAutomine(chain, false)
    const { call, spending } = wallet({ patienceMs: 1500 })
    try {
      const pending = await call('shop-item')
      expect(pending).toMatchObject({ isError: true })
      expect(pending.text).toMatch(
        new RegExp(
          '^The settlement is not finished \\(settlement-pending, transaction 0x[0-9a-f]{64}\\)\\. A ' +
            `payment of 0\\.005000 USDC on eip155:8453 is signed, valid until ${iso}\\. Call the same ` +
            'tool with the same arguments: it presents the same payment, and pays nothing more\\.$',
        ),
      )
      expect(spending.unfinished()).toMatchObject([{ state: 'open' }])
    } finally {
      await setAutomine(chain, true)
    }
    await mine(chain)
    const served = await call('shop-item')
    expect(served).toMatchObject({ isError: false })
    expect((await paid()) - before).toBe(5000n)
    expect(spending.today()).toEqual({ spentMicros: 5000n, payments: 1 })
  })
})

describe('the scheme upto', () => {
  const chat = { body: JSON.parse(body) }
  const buyer = account(2)
  const byUse = (options: Partial<WalletOptions> = {}) =>
    wallet({ buyer, scheme: 'upto', ...options })

  test('error: a wallet that has not approved Permit2 gets instructions', async () => {
    const refused = await byUse({ buyer: account(3) }).call('model-chat', chat)
    expect(refused.text).toStartWith(
      `The wallet ${account(3).address} has not approved Permit2 on eip155:8453. Ask the user to pay ` +
        'once with turnpike pay and --transfer permit2, which approves it, or to omit --scheme upto. ',
    )
  })

  test('the ceiling counts until the chain shows the charge', async () => {
    await shop.setAllowance(buyer.address, 10_000_000n)
    shop.upstream.script = answering(usage(7, 20))
    const { call, spending, reconcile } = byUse({ perDay: '0.09' })
    const before = await paid()
    const served = await call('model-chat', chat)
    const cost = costOf(7, 20)
    expect(served.text).toMatch(
      /\[turnpike\] Cost: 0\.000707 USDC of at most 0\.\d{6} USDC on eip155:8453, transaction 0x/,
    )
    expect((await paid()) - before).toBe(BigInt(cost))
    const { spentMicros } = spending.today()
    expect(spentMicros).toBeGreaterThan(BigInt(cost))
    await reconcile()
    expect(spending.today()).toEqual({ spentMicros: BigInt(cost), payments: 1 })
  })

  test('a call that does not fit by its ceilings fits by what they have cost', async () => {
    await shop.setAllowance(buyer.address, 10_000_000n)
    shop.upstream.script = answering(usage(7, 20))
    const once = byUse()
    await once.call('model-chat', chat)
    const ceiling = once.spending.today().spentMicros
    const limit = `0.0${String(ceiling + 1000n).padStart(5, '0')}`
    const { call, spending } = byUse({ state: once.state, perDay: limit })
    expect(await call('model-chat', chat)).toMatchObject({ isError: false })
    expect(spending.today().payments).toBe(2)
    const blind = byUse({ state: once.state, perDay: limit, rpc: 'http://127.0.0.1:1' })
    expect((await blind.call('model-chat', chat)).text).toContain('ask the user to raise')
  })

  test('error: the text says that a failed answer is not charged, and the next call signs again', async () => {
    await shop.setAllowance(buyer.address, 10_000_000n)
    shop.upstream.script = answering('{}', 500)
    const { call, spending } = byUse()
    const failed = await call('patient-chat', chat)
    expect(failed.text).toMatch(
      new RegExp(
        '^The gateway says "upstream-failed, delivery_failed: .+"\\. The gateway charges nothing\\. The ' +
          'signed ceiling of 0\\.\\d{6} USDC counts against the limit of the day until ' +
          `${iso}\\. Call the tool again to sign another one\\.$`,
      ),
    )
    shop.upstream.script = answering(usage(1, 1))
    expect(await call('patient-chat', chat)).toMatchObject({ isError: false })
    expect(spending.today().payments).toBe(2)
  })
})

describe('the facts of the chain', () => {
  test('attack: the transaction of another payment does not lower what counts', async () => {
    const buyer = account(5)
    await shop.setAllowance(buyer.address, 10_000_000n)
    const { call, spending, reconcile, state } = wallet({ buyer, scheme: 'upto' })
    const chat = { body: JSON.parse(body) }
    shop.upstream.script = answering(usage(7, 20))
    await call('model-chat', chat)
    shop.upstream.script = answering(usage(7, 10))
    await call('model-chat', chat)
    const [dear, cheap] = spending.unsettled()
    if (dear === undefined || cheap === undefined) throw new Error('no payments')
    const db = new Database(state)
    const name = db.query('UPDATE payments SET tx = ? WHERE id = ?')
    for (const wrong of [cheap.transaction, `0x${'12'.repeat(32)}`, null]) {
      name.run(wrong ?? null, dear.id)
      await reconcile()
      expect(spending.unsettled().map(({ id }) => id)).toEqual([dear.id])
      expect(spending.today().spentMicros).toBe(dear.signedMicros + BigInt(costOf(7, 10)))
    }
    name.run(dear.transaction ?? null, dear.id)
    db.close()
    await reconcile()
    expect(spending.today().spentMicros).toBe(BigInt(costOf(7, 20) + costOf(7, 10)))
  })

  test('a payment that was not used no longer counts when its time has passed on the chain', async () => {
    const poor = account(9)
    await shop.setBalance(poor.address, 0n)
    const { call, spending, reconcile, state } = wallet({ buyer: poor })
    await call('shop-item')
    // Permit2 has the same address on all chains.
    const byUse = wallet({ buyer: poor, scheme: 'upto', state })
    await byUse.call('model-chat', { body: JSON.parse(body) })
    const signed = spending.today().spentMicros
    expect(signed).toBeGreaterThan(5000n)
    const bought = wallet({ state, buyer: account(4) })
    expect(await bought.call('shop-other')).toMatchObject({ isError: false })
    await reconcile()
    const before = { spentMicros: signed + 5000n, payments: 3 }
    expect(spending.today()).toEqual(before)
    for (const chain of [shop.chain(), shop.chain('eip155:4663')])
      await request(chain.url, [
        ['evm_increaseTime', [3600]],
        ['evm_mine', []],
      ])
    // A node of another chain proves nothing.
    await wallet({ state, rpc: shop.chain('eip155:4663').url }).reconcile()
    expect(spending.today()).toEqual(before)
    await reconcile()
    expect(spending.today()).toEqual({ spentMicros: 5000n, payments: 3 })
    expect(spending.unfinished()).toEqual([])
  })
})
