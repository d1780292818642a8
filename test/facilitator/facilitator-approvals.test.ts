import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import {
  type Address,
  encodeFunctionData,
  type Hex,
  maxUint256,
  parseAbi,
  type TransactionSerializable,
} from 'viem'
import { account } from '../../src/demo/accounts'
import { mine } from '../../src/demo/chains'
import * as Permit from '../../src/protocol/Permit'
import { type Body, charging, type Made, makeBody, post } from '../harness/facilitation'
import { payee, type Shop, startShop } from '../harness/shop'

/** Payers that need gas for an approve, through the facilitator's own paths. */

const id = 'eip155:4663'
const name = 'erc20ApprovalGasSponsoring'
const abi = parseAbi(['function approve(address spender, uint256 value) returns (bool)'])
let shop: Shop
beforeAll(async () => {
  shop = await startShop({
    adjust: (config) => ({
      ...config,
      facilitator: { ...config.facilitator, uptoWithoutKeys: true },
    }),
    // The local node suggests a tip of 1 gwei, which makes an approve expensive: the required
    // balance is higher.
    edit: (text) =>
      text
        .replace('min_balance = "0.25"', 'min_balance = "1.00"')
        .replace('max_grant_wei = "62500000000000"', 'max_grant_wei = "200000000000000"')
        .replace('min_balance_age_blocks = 50', 'min_balance_age_blocks = 3'),
  })
  await mine(chain(), 3)
})
afterAll(() => shop?.stop())

function chain() {
  const found = shop.chains[id]
  if (!found) throw new Error('no chain')
  return found
}
function network() {
  const found = shop.config.networks.find((each) => each.id === id)
  if (!found) throw new Error('no network')
  return found
}
const wei = async (address: Address) =>
  BigInt((await chain().rpc('eth_getBalance', [address, 'latest'])) as Hex)
const payer = account(3)

async function fees() {
  const block = (await chain().rpc('eth_getBlockByNumber', ['latest', false])) as {
    baseFeePerGas: Hex
  }
  const tip = BigInt((await chain().rpc('eth_maxPriorityFeePerGas', [])) as Hex)
  return { maxPriorityFeePerGas: tip, maxFeePerGas: (BigInt(block.baseFeePerGas) * 6n) / 5n + tip }
}

const approveOf = (spender: Address, value: bigint) =>
  encodeFunctionData({ abi, functionName: 'approve', args: [spender, value] })

/** A payment with a signed approve, in which some fields are replaced. */
async function paymentWith(
  changes: Partial<TransactionSerializable> = {},
  made: Made = {},
  signer = payer,
): Promise<Body> {
  const { asset, chainId } = network()
  const transaction = {
    type: 'eip1559',
    chainId,
    nonce: 0,
    to: asset.address,
    data: approveOf(Permit.permit2Address, maxUint256),
    gas: 70_000n,
    ...(await fees()),
    ...changes,
  } as TransactionSerializable
  const signedTransaction = await signer.local().signTransaction(transaction)
  const info = {
    from: payer.address,
    asset: asset.address,
    spender: Permit.permit2Address,
    amount: String(maxUint256),
    signedTransaction,
    version: '1',
  }
  const extensions = { [name]: { info, schema: {} } }
  return makeBody(network(), { method: 'permit2', from: payer.local(), extensions, ...made })
}

const codeOf = (json: Record<string, unknown>) => json.invalidReason ?? json.errorReason

/** Verifies and settles; expects a code, no row and no gas for the payer. */
async function expectRefused(what: string, body: Body, code: string | RegExp): Promise<void> {
  const rows = shop.counts()
  for (const operation of ['verify', 'settle']) {
    const { status, json } = await post(`${shop.url}/${operation}`, body)
    expect([what, operation, status]).toEqual([what, operation, 200])
    expect([json.isValid, json.success]).not.toContain(true)
    if (typeof code === 'string') expect([what, codeOf(json)]).toEqual([what, code])
    else expect(String(codeOf(json))).toMatch(code)
  }
  expect(shop.counts()).toEqual(rows)
  expect(shop.rows('SELECT address FROM grants')).toEqual([])
  expect(await wei(payer.address)).toBe(0n)
}

describe('attack 15: a signed transaction that is not just the approve', () => {
  const token = '0x5fc5360D0400a0Fd4f2af552ADD042D716F1d168'
  const good = approveOf(Permit.permit2Address, maxUint256)
  const wrong: readonly [string, Partial<TransactionSerializable>, string][] = [
    ['another chain', { chainId: 8453 }, 'erc20_approval_tx_wrong_chain'],
    ['another target', { to: payee }, 'erc20_approval_tx_wrong_target'],
    ['a transfer', { data: `0xa9059cbb${good.slice(10)}` }, 'erc20_approval_tx_wrong_selector'],
    ['a longer call', { data: `${good}00` }, 'erc20_approval_tx_invalid_calldata'],
    ['another spender', { data: approveOf(payee, 1n) }, 'erc20_approval_tx_wrong_spender'],
    [
      'an approve of nothing',
      { data: approveOf(Permit.permit2Address, 0n) },
      'erc20_approval_tx_amount_too_low',
    ],
    ['value', { value: 1n }, 'erc20_approval_tx_value_not_zero'],
    ['a later nonce', { nonce: 1 }, 'erc20_approval_tx_wrong_nonce'],
    ['much gas', { gas: 1_000_000n }, 'erc20_approval_tx_gas_too_high'],
    ['a high fee', { maxFeePerGas: 10n ** 12n }, 'erc20_approval_tx_fee_too_high'],
    [
      'an access list',
      { accessList: [{ address: token, storageKeys: [] }] },
      'erc20_approval_tx_parse_failed',
    ],
  ]
  for (const [what, changes, code] of wrong) {
    test(`error: with ${what} it is refused as ${code}`, async () =>
      expectRefused(what, await paymentWith(changes), code))
  }

  test('error: an approve signed by another key, or of an old type, is refused', async () => {
    const other = await paymentWith({}, {}, account(4))
    await expectRefused('signer', other, 'erc20_approval_tx_signer_mismatch')
    const gasPrice = (await fees()).maxFeePerGas
    const legacy = await payer.local().signTransaction({
      ...{ type: 'legacy', chainId: 4663, nonce: 0, to: token, data: good, gas: 70_000n, gasPrice },
    })
    const body = await paymentWith()
    const extension = body.paymentPayload.extensions?.[name] as { info: Record<string, unknown> }
    extension.info.signedTransaction = legacy
    await expectRefused('legacy', body, 'erc20_approval_tx_parse_failed')
    extension.info.signedTransaction = '0x02zz'
    await expectRefused('no hex', body, 'invalid_erc20_approval_extension_format')
    extension.info.from = account(4).address
    extension.info.signedTransaction = legacy
    await expectRefused('payer', body, 'erc20_approval_from_mismatch')
  })
})

test('attack 16: no gas is granted for a payment that would fail', async () => {
  const unpayable: readonly [string, Made][] = [
    ['permit2_insufficient_balance', { amountAtomic: 90_000_000_000n }],
    ['invalid_permit2_signature', { signature: (text) => `${text.slice(0, -4)}001b` as Hex }],
    ['permit2_deadline_expired', { validBefore: 1n }],
    ['payee_not_allowed', { to: account(8).address, requirements: { payTo: account(8).address } }],
    ['permit2_amount_mismatch', { requirements: { amount: '1' } }],
  ]
  for (const [code, made] of unpayable) {
    await expectRefused(code, await paymentWith({}, made), code)
  }
})

test('the approve is funded, sent and followed by the settlement, once per payer', async () => {
  const body = await paymentWith()
  expect((await post(`${shop.url}/verify`, body)).json).toMatchObject({ isValid: true })
  expect(shop.rows('SELECT address FROM grants')).toEqual([])
  const before = await shop.balance(id, payee)
  const answers = await Promise.all(
    Array.from({ length: 3 }, () => post(`${shop.url}/settle`, body)),
  )
  expect(answers.filter(({ json }) => json.success === true)).toHaveLength(1)
  expect((await shop.balance(id, payee)) - before).toBe(5_000n)
  expect(shop.rows('SELECT address FROM grants')).toEqual([{ address: payer.address }])
  // Later payments need only a signature.
  const next = await makeBody(network(), { method: 'permit2', from: payer.local() })
  expect((await post(`${shop.url}/settle`, next)).json).toMatchObject({ success: true })
})

test('of upto the approve is sent for a charge, and not for a charge of nothing', async () => {
  const poor = account(5)
  const made: Made = { scheme: 'upto', from: poor.local() }
  const bodies = [await paymentWith({}, made, poor), await paymentWith({}, made, poor)]
  for (const body of bodies) {
    const extension = body.paymentPayload.extensions?.[name] as { info: Record<string, unknown> }
    extension.info.from = poor.address
    expect((await post(`${shop.url}/verify`, body)).json).toMatchObject({ isValid: true })
  }
  const [free, paid] = bodies
  if (free === undefined || paid === undefined) throw new Error('no body')
  const rows = shop.rows('SELECT address FROM grants')
  const nothing = await post(`${shop.url}/settle`, charging(free, 0))
  expect(nothing.json).toMatchObject({ success: true, transaction: '', amount: '0' })
  expect([shop.rows('SELECT address FROM grants'), await wei(poor.address)]).toEqual([rows, 0n])
  const before = await shop.balance(id, payee)
  const settled = await post(`${shop.url}/settle`, charging(paid, 321))
  expect(settled.json).toMatchObject({ success: true, amount: '321' })
  expect((await shop.balance(id, payee)) - before).toBe(321n)
  expect(shop.rows('SELECT address FROM grants')).toContainEqual({ address: poor.address })
})
