-- Gives up the place of an owner that nobody waits for, or without an owner only
-- those of the dead, and tells who is first now. It ends no lock: a clone of this
-- process has the same name, and what the owner waited for may be its by now.
--
--   $key $owner
{begin};
{lock};
{number};
{leave_queue};
{mark_waited};
{wake};
{commit}
