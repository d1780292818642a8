import { jobs } from '../jobs'
import type { JobReads } from '../Ledger'
import type { Selected } from './payments'
import type { Reader } from './reader'
import { fromJson } from './rows'

const byId = 'SELECT to_jsonb(jobs) AS row FROM jobs WHERE id = $1'

export function createJobReads(reader: Reader): JobReads {
  return {
    async find(id) {
      const found = await reader.one<Selected>(byId, [id])
      return found && fromJson(jobs, found.row)
    },
  }
}
