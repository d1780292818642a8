import { describe, expect, spyOn, test } from 'bun:test'
import { ownChannels } from '../../harness/own-channels'

const price = 10_000n

describe.concurrent('a charge that is not written', () => {
  test('error: the storage fails: the charge is written once it can be', async () => {
    await using own = await ownChannels()
    const config = await own.opened()
    const full = Object.assign(new Error('database or disk is full'), { code: 'SQLITE_FULL' })
    const charge = spyOn(own.fixture.ledger.channels, 'charge').mockRejectedValueOnce(full)
    await own.pay(own.voucher(config, 2n * price, price))
    expect(charge).toHaveBeenCalledTimes(2)
    expect(await own.row(config)).toMatchObject({ chargedAtomic: 2n * price })
  })

  test('error: any other fault releases the voucher, and the same one may come again', async () => {
    await using own = await ownChannels()
    const config = await own.opened()
    spyOn(own.fixture.ledger.channels, 'charge').mockRejectedValueOnce(new Error('a fault'))
    const voucher = own.voucher(config, 2n * price, price)
    const failed = await own.pay(voucher).catch((error: unknown) => error)
    expect(failed).toMatchObject({ message: 'a fault' })
    await own.pay(voucher)
    expect(await own.row(config)).toMatchObject({ chargedAtomic: 2n * price })
  })
})
