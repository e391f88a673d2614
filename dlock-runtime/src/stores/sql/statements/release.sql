-- Gives a writer's lock back and tells the next in the queue.
--
--   $key $owner
--
-- One row if the owner held it.
{begin};
{free};
{wake};
{commit}
