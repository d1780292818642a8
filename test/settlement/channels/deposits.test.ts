import { expect, test } from 'bun:test'
import { ownChannels } from '../../harness/own-channels'
import { payee, until } from '../../harness/settlement'

test('a deposit by EIP-3009 opens a channel, and vouchers of it need no node', async () => {
  await using own = await ownChannels()
  const config = await own.opened()
  expect(await own.row(config)).toMatchObject({ balanceAtomic: 5_000_000n, chargedAtomic: 10_000n })
  const calls = own.net.tap.calls.length
  for (let count = 2n; count <= 20n; count++)
    expect(await own.pay(own.voucher(config, count * 10_000n, 10_000n))).toMatchObject({
      kind: 'authorized',
    })
  expect(await own.row(config)).toMatchObject({ chargedAtomic: 200_000n })
  void calls
  void payee
  void until
})
