import type { Command } from './Command'
import { data, places, print } from './places'

/** Commands on the database of a service, which may be running. */

export const sales: Command = {
  summary: 'what was paid, delivered and spent on gas; serve may be running',
  details: `TIME is 30d (from midnight UTC), 24h, 2026-11-20, 2026-11-20T08:00Z or a Unix time.
NAME is merchant, route, payer, network or day (UTC).`,
  options: {
    since: { value: 'TIME', help: 'begin of the period (default: 30d)' },
    by: { value: 'NAME', help: 'how to group (default: merchant)' },
    csv: { help: 'comma-separated values with a header' },
    json: { help: 'JSON, with amounts as strings' },
    data,
  },
  examples: ['sales', 'sales --since 7d --by day', 'sales --since 2026-11-01 --csv'],
  async run({ values }) {
    const { sales } = await import('./sales')
    const { dataDir } = places(values)
    const print = (text: string) => void process.stdout.write(text)
    return sales({ ...values, dataDir, env: process.env, now: Date.now, out: print })
  },
}

export const orders: Command = {
  summary: 'orders of the stock desk: those that are held first',
  details: `list      the held ones first, then the unfinished and the newest
show ID   one order with every transaction of it
retry ID  continue a held order; serve may be running`,
  verbs: { list: [], show: ['the id of an order'], retry: ['the id of an order'] },
  options: { data },
  examples: ['orders list', 'orders retry 01a4'],
  async run({ values, word, operand }) {
    const { orders } = await import('./orders')
    const { dataDir } = places(values)
    return orders({ dataDir, env: process.env, verb: word, id: operand, now: Date.now, out: print })
  },
}

export const webhooks: Command = {
  summary: 'messages to webhooks: those that wait, failed and were sent last',
  details: `list       waiting, failed and delivered ones with attempts and the last status
resend ID  send one again, with the same webhook-id; serve may be running`,
  verbs: { list: [], resend: ['the id of a message'] },
  options: { data },
  examples: ['webhooks list', 'webhooks resend evt_4f0c'],
  async run({ values, word, operand }) {
    const { webhooks } = await import('./webhooks')
    const { dataDir } = places(values)
    return webhooks({
      dataDir,
      env: process.env,
      verb: word,
      id: operand,
      now: Date.now,
      out: print,
    })
  },
}

export const gateways: Command = {
  summary: 'gateways that share a PostgreSQL, with the relayers of each',
  details: `Each gateway with its host, version, hash of the configuration and last sign of life. Then each
relayer on each network, and the network's other duties (keeper), with the gateway that has it.
It needs DATABASE_URL.`,
  options: { json: { help: 'JSON, with times in milliseconds' } },
  examples: ['gateways', 'gateways --json'],
  async run({ values }) {
    const { gateways } = await import('./gateways')
    return gateways({ env: process.env, json: values.json, out: print })
  },
}

export const backup: Command = {
  summary: 'consistent copy of the live database; serve may be running',
  operands: ['a file'],
  options: { data },
  examples: ['backup /var/backups/turnpike.sqlite'],
  async run({ values, operand }) {
    const { backup } = await import('./backup')
    return backup({ dataDir: places(values).dataDir, env: process.env, file: operand, out: print })
  },
}

export const move: Command = {
  summary: 'copy a stopped service into the PostgreSQL of DATABASE_URL',
  details: `The database must be empty. All rows are copied in one transaction and compared. The data
directory can then be used with DATABASE_URL only.`,
  options: { data },
  examples: ['move', 'move --data /var/lib/turnpike'],
  async run({ values }) {
    const { move } = await import('./move')
    const { dataDir } = places(values)
    return move({ dataDir, env: process.env, now: Date.now, out: print })
  },
}
